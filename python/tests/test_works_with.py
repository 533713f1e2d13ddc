"""What hooks that are attached work together with."""

import pytest
import torch
import torch.distributed as dist
from models import (
    batch,
    exact_gradient,
    flat_gradient,
    flat_parameters,
    make_ddp,
    net,
    train,
)
from ranks import error_of, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire


class Branches(nn.Module):
    """Every rank uses one branch of its own; nobody uses the last one."""

    def __init__(self, branches):
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList(nn.Linear(40, 40) for _ in range(branches))

    def forward(self, rank):
        return self.branches[rank](torch.full((1, 40), 1.0 + rank)).sum()


def branch_gradients(rank, world, hook):
    ddp = make_ddp(Branches(world + 1), find_unused_parameters=True)
    gradwire.attach(ddp, hook)
    results = []
    for _ in range(3):
        ddp.zero_grad()
        ddp(rank).backward()
        results.append([p.grad for p in ddp.parameters()])
    return results


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "int8", "powersgd:start=2,rank=1"])
def test_unused_parameters(hook):
    world = 2
    for results in run(world, branch_gradients, hook):
        for gradients in results:
            assert gradients[2 * world] is None and gradients[2 * world + 1] is None
            for branch in range(world):
                # Of rank one, so that PowerSGD loses nothing of it.
                weight = torch.full((40, 40), (1.0 + branch) / world)
                torch.testing.assert_close(gradients[2 * branch], weight, rtol=1e-2, atol=0)
                bias = torch.full((40,), 1.0 / world)
                torch.testing.assert_close(gradients[2 * branch + 1], bias, rtol=1e-2, atol=0)


def accumulated(rank, world):
    ddp = make_ddp()
    gradwire.attach(ddp, "int8:ef=off")
    with ddp.no_sync():
        ddp(batch(rank, 0)).square().sum().backward()
    alone = flat_gradient(ddp).clone()
    ddp(batch(rank, 1)).square().sum().backward()
    return alone, flat_gradient(ddp), gradwire.stats(ddp)["steps"]


def test_accumulation():
    results = run(2, accumulated)
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], results[1][0])
    exact = exact_gradient(2, 0) + exact_gradient(2, 1)
    assert (results[0][1].double() - exact).abs().max() <= 2e-2 * exact.abs().max()
    assert results[0][2] == 1


def uneven(rank, world):
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    with ddp.join():
        error = error_of(gradwire.attach, ddp, "fp16")
        train(ddp, rank, 2 + 2 * rank)
    return flat_parameters(ddp), error


def test_join():
    one, two = run(2, uneven)
    assert torch.equal(one[0], two[0])
    assert one[1] == two[1] == (
        "ValueError",
        "attach was called inside join(), expected it outside",
    )
    # Ranks without input add zeros and are divided by.
    alone = net()
    sgd = torch.optim.SGD(alone.parameters(), 0.05, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        for rank in range(2):
            if step < 2 + 2 * rank:
                (alone(batch(rank, step)).square().sum() / 2).backward()
        sgd.step()
    torch.testing.assert_close(one[0], flat_parameters(alone), rtol=1e-2, atol=1e-2)


SEVERAL = ["int8", "powersgd:min_compression_rate=0.000001,rank=30,start=0"]


def several(rank, world):
    one, two = make_ddp(), make_ddp(net(seed=2))
    for ddp, hook in zip((one, two), SEVERAL):
        gradwire.attach(ddp, hook)
    for step in range(3):
        x = batch(rank, step)
        (one(x).square().sum() + two(x).square().sum()).backward()
    return [(flat_gradient(ddp), gradwire.stats(ddp)["hook"]) for ddp in (one, two)]


def test_several_ddps_in_one_backward():
    first, second = run(2, several)
    assert [hook for _, hook in first] == SEVERAL
    for (results, _), (others, _), seed in zip(first, second, (1, 2)):
        assert torch.equal(results, others)
        exact = sum(exact_gradient(2, step, lambda: net(seed=seed)) for step in range(3))
        assert (results.double() - exact).abs().max() <= 2e-2 * exact.abs().max()


class Mixed(nn.Module):
    """One layer frozen, one used twice, one that DDP is told to ignore."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.ignored = nn.Linear(6, 6)

    def forward(self, x):
        return self.ignored(self.second(self.first(self.frozen(x))))

    def gradients(self):
        return {name: p.grad for name, p in self.named_parameters()}


def mixed(rank, world, hook):
    module = Mixed()
    ignored = [name for name, _ in module.named_parameters() if "ignored" in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
    ddp = make_ddp(module)
    gradwire.attach(ddp, hook)
    for step in range(3):
        module.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
    return module.gradients(), gradwire.stats(ddp)["parameters"]


@pytest.mark.parametrize("hook", ["allreduce", "fp16", "powersgd:start=3"])
def test_frozen_tied_and_ignored_parameters(hook):
    local = []
    for rank in range(2):
        alone = Mixed()
        alone(batch(rank, 2)).square().sum().backward()
        local.append(alone.gradients())
    for rank, (gradients, parameters) in enumerate(run(2, mixed, hook)):
        assert parameters == 6 * 6 + 2 * 6
        for name, gradient in gradients.items():
            one, two = local[0][name], local[1][name]
            if name.startswith("frozen"):
                assert gradient is None
            elif name.startswith("ignored"):
                assert torch.equal(gradient, local[rank][name])
            else:
                average = (one + two) / 2
                assert (gradient - average).abs().max() <= 2e-3 * average.abs().max()


def in_subgroups(rank, world):
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    ddp = make_ddp(process_group=groups[rank % 2])
    gradwire.attach(ddp, "int8")
    ddp(batch(rank, 0)).square().sum().backward()
    return flat_gradient(ddp), gradwire.stats(ddp)["world"]


def test_subgroups():
    results = run(4, in_subgroups)
    assert torch.equal(results[0][0], results[2][0])
    assert torch.equal(results[1][0], results[3][0])
    assert not torch.equal(results[0][0], results[1][0])
    assert results[3][1] == 2


def other_group(rank, world):
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    ddp = make_ddp()
    gradwire.attach(ddp, "allreduce", process_group=pair)
    ddp(batch(rank, 0)).square().sum().backward()
    return flat_gradient(ddp)


def test_a_hook_on_another_group():
    results = run(4, other_group)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])
    assert not torch.equal(results[0], results[2])
    exact = exact_gradient(2, 0)
    assert torch.allclose(results[0].double(), exact, rtol=1e-4, atol=1e-6)


def compiled(rank, world, outside):
    module = net()
    if outside:
        ddp = torch.compile(make_ddp(module, bucket_cap_mb=25), backend="aot_eager")
    else:
        ddp = make_ddp(torch.compile(module, backend="aot_eager"), bucket_cap_mb=25)
    gradwire.attach(ddp, "int8:ef=off")
    ddp(batch(rank, 0)).square().sum().backward()
    stats = gradwire.stats(ddp)
    return flat_gradient(ddp), stats["steps"], stats["sent"]["payload"]


@pytest.mark.parametrize("outside", [False, True])
def test_compiled_modules(outside):
    results = run(2, compiled, outside, timeout=100)
    exact = exact_gradient(2, 0)
    for gradient, steps, sent in results:
        assert torch.equal(gradient, results[0][0])
        assert (gradient.double() - exact).abs().max() <= 2e-2 * exact.abs().max()
        assert steps == 1 and sent > 0


def scaled(rank, world):
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    sgd = torch.optim.SGD(ddp.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = flat_parameters(ddp)
    seen = []
    for step in range(3):
        sgd.zero_grad()
        loss = ddp(batch(rank, step)).square().sum()
        if step == 1 and rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
        now = flat_parameters(ddp)
        seen.append(not torch.equal(now, before))
        before = now
    return seen, before, scaler.get_scale()


def test_a_gradient_that_is_not_finite_skips_the_step_on_all_ranks():
    results = run(2, scaled)
    for moved, parameters, scale in results:
        assert moved == [True, False, True]
        assert torch.equal(parameters, results[0][1])
        assert torch.isfinite(parameters).all()
        assert scale == 2.0
