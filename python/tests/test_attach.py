"""gradwire.attach: averages and bytes."""

import math

import pytest
import torch
from models import batch, exact_gradient, flat_gradient, make_ddp, net, train
from ranks import run

import gradwire

FULL_RANK = "powersgd:rank=30,start=0,min_compression_rate=0.000001"


def trial_spec(hook):
    """Under which the first step does what later ones do."""
    return ":".join(filter(None, [hook["name"], hook["trial"]]))


# Specs, and the largest error relative to the largest element of the exact average.
# The worst case, which is the tolerance, is far from these gradients.
HOOKS = {
    trial_spec(hook): max(1e-6, hook["tolerance"] / 3)
    for hook in gradwire.hooks()
    if hook["averages"]
} | {"none": 1e-6, "powersgd": 1e-6, "batched_powersgd": 1e-6, FULL_RANK: 1e-4}


def test_hooks_describe_themselves():
    (int8,) = [hook for hook in gradwire.hooks() if hook["name"] == "int8"]
    assert int8["summary"].startswith("8-bit integers")
    (block,) = [option for option in int8["options"] if option["name"] == "block"]
    assert block["default"] == 512
    assert block["range"] == "integer from 32 to 1048576 or tensor"
    assert int8["averages"] and 1 / 127 <= int8["tolerance"] <= 4 / 127
    (powersgd,) = [hook for hook in gradwire.hooks() if hook["name"] == "powersgd"]
    assert powersgd["trial"] == "rank=2,start=0" and powersgd["tolerance"] == math.inf
    (local,) = [hook for hook in gradwire.hooks() if hook["name"] == "post_local_sgd"]
    assert [option["default"] for option in local["options"]] == [0, "machine"]


def gradients(rank, world, hook, options):
    ddp = make_ddp(**options)
    gradwire.attach(ddp, hook)
    results = []
    for step in range(3):  # buckets are rebuilt before the second
        ddp.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
        results.append(flat_gradient(ddp))
    return results


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("hook", HOOKS)
def test_averages(hook, world):
    all_results = run(world, gradients, hook, {})
    for step in range(3):
        exact = exact_gradient(world, step)
        limit = HOOKS[hook] * exact.abs().max()
        for results in all_results:
            assert torch.equal(results[step], all_results[0][step])
            assert (results[step].double() - exact).abs().max() <= limit


OPTIONS = {
    "view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


# With residuals of the steps before.
LOSSY = {
    "fp16": 2e-3,
    "int8": 4e-2,
    "powersgd:rank=30,start=1,min_compression_rate=0.000001": 1e-4,
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("hook", LOSSY)
def test_works_with_options_of_ddp(hook, name):
    one, two = run(2, gradients, hook, OPTIONS[name])
    for step in range(3):
        assert torch.equal(one[step], two[step])
        exact = exact_gradient(2, step)
        error = (one[step].double() - exact).abs().max()
        assert error <= LOSSY[hook] * exact.abs().max()


def stays_local(rank, world, hook):
    ddp = make_ddp()
    gradwire.attach(ddp, hook)
    ddp(batch(rank, 0)).square().sum().backward()
    local = net()
    local(batch(rank, 0)).square().sum().backward()
    return torch.equal(flat_gradient(ddp), flat_gradient(local))


LOCAL = [trial_spec(hook) for hook in gradwire.hooks() if not hook["averages"]]


@pytest.mark.parametrize("hook", LOCAL)
def test_hooks_that_do_not_average_leave_gradients_local(hook):
    assert run(2, stays_local, hook) == [True, True]


def test_noop_is_one_of_them():
    assert "noop" in LOCAL


def replaced(rank, world):
    ddp = make_ddp()
    hooks = []
    for hook in ("allreduce", "int8", "none", "fp16"):
        gradwire.attach(ddp, hook)
        train(ddp, rank, 2)
        with ddp.no_sync():
            train(ddp, rank, 1)  # no step of the hook
        hooks.append(ddp._get_ddp_logging_data()["comm_hook"])
    return hooks, gradwire.stats(ddp)["steps"]


def test_another_hook_takes_the_place_of_the_one_before():
    one, two = run(2, replaced)
    assert one[1] == two[1] == 8
    assert one[0] == [f"gradwire {hook}" for hook in ("allreduce", "int8", "none", "fp16")]


def state_dict(rank, world):
    ddp = make_ddp()
    before = list(ddp.state_dict())
    gradwire.attach(ddp, "int8")
    train(ddp, rank, 2)
    return before == list(ddp.state_dict())


def test_state_dict_is_untouched():
    assert run(2, state_dict) == [True, True]


def measured(rank, world, hook):
    ddp = make_ddp(net((64, 256, 256, 4)), bucket_cap_mb=0.1)
    gradwire.attach(ddp, hook)
    sgd = torch.optim.SGD(ddp.parameters(), 0.01)
    for step in range(4):
        sgd.zero_grad()
        ddp(batch(rank, step, width=64)).square().sum().backward()
        sgd.step()
    return gradwire.stats(ddp)


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "int8", "int4"])
def test_stats(hook):
    ratio = {"allreduce": 1, "fp16": 2, "int8": 3.9, "int4": 7.8}[hook]
    for rank, stats in enumerate(run(2, measured, hook)):
        parameters = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 4 + 4
        assert stats["hook"] == hook
        assert (stats["rank"], stats["world"]) == (rank, 2)
        assert stats["parameters"] == parameters
        assert sum(stats["bucket_bytes"]) == 4 * parameters
        assert len(stats["bucket_bytes"]) > 1 and stats["rebuilt"]
        assert stats["steps"] == 4
        # Of two ranks each sends all of its elements.
        assert stats["plain_bytes"] == pytest.approx(4 * parameters, rel=1e-3)
        buckets = stats["last"]["buckets"]
        sent = sum(sum(bucket["sent"].values()) for bucket in buckets)
        assert sent == sum(stats["last"]["sent"].values())
        assert sum(stats["sent"].values()) == pytest.approx(4 * sent, rel=0.01)
        assert stats["ratio"] == pytest.approx(ratio, rel=0.03)
        (by_hook,) = stats["sent_by_hook"]
        assert by_hook["sent"] == stats["sent"]
        # The Reducer averages by itself.
        plain = hook == "allreduce"
        assert (by_hook["hook"], by_hook["steps"]) == ("none" if plain else hook, 4)
        # Nobody sees when a DDP of PyTorch's begins its forward and backward.
        assert math.isnan(stats["last"]["forward_ms"])
        assert math.isnan(stats["last"]["backward_ms"])
        if not plain:
            whole = stats["last"]["communication_ms"]
            assert whole >= stats["last"]["exposed_ms"] > 0
            assert stats["mean"]["communication_ms"] > 0
            assert buckets[0]["ready_ms"] == 0
            for bucket in buckets:
                assert 0 <= bucket["ready_ms"] <= bucket["reduced_ms"] <= whole
