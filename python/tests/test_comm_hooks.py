"""gradwire.ddp_comm_hooks against PyTorch's own hooks and against references."""

import inspect

import pytest
import torch
import torch.distributed as dist
from models import Task, flat_gradient, flat_parameters, make_ddp, net, task_gradient, train
from quantized import most_lost, per_channel, per_tensor
from ranks import error_of, run
from torch.distributed.algorithms import ddp_comm_hooks as theirs

import gradwire
from gradwire import ddp_comm_hooks as ours
from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import PowerSGDState

NAMES = [member.name for member in theirs.DDPCommHookType]
# Of PyTorch's own tests.
TOLERANCES = {
    "ALLREDUCE": {"rtol": 1e-5, "atol": 0},
    "FP16_COMPRESS": {"rtol": 1e-5, "atol": 1e-4},
    "BF16_COMPRESS": {"rtol": 1e-2, "atol": 1e-3},
    "QUANTIZE_PER_TENSOR": {"rtol": 1e-5, "atol": 1e-4},
    "QUANTIZE_PER_CHANNEL": {"rtol": 1e-5, "atol": 1e-4},
}


def test_names_and_functions_are_the_same():
    assert [member.name for member in DDPCommHookType] == NAMES
    for module in ("default_hooks", "quantization_hooks", "powerSGD_hook", "debugging_hooks"):
        ours_in = getattr(ours, module)
        theirs_in = __import__(
            f"torch.distributed.algorithms.ddp_comm_hooks.{module}", fromlist=["x"]
        )
        names = getattr(
            theirs_in,
            "__all__",
            ["quantization_perchannel_hook", "quantization_pertensor_hook"],
        )
        assert sorted(ours_in.__all__) == sorted(names)
        for name in names:
            assert arguments(getattr(ours_in, name)) == arguments(getattr(theirs_in, name))


def arguments(function):
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]


def registered(rank, world, name, library):
    ddp = make_ddp(Task())
    if library is None:
        return task_gradient(ddp, rank)
    module = ours if library == "ours" else theirs
    module.register_ddp_comm_hook(module.DDPCommHookType[name], ddp)
    return task_gradient(ddp, rank)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["ALLREDUCE", "FP16_COMPRESS"])
def test_equals_pytorchs_own_hook(name, world):
    expected = run(world, registered, name, "theirs")
    for result in run(world, registered, name, "ours"):
        torch.testing.assert_close(result, expected[0], **TOLERANCES[name])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", TOLERANCES)
def test_equals_no_hook(name, world):
    expected = run(world, registered, name, None)
    results = run(world, registered, name, "ours")
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(result, expected[0], **TOLERANCES[name])


QUANTISED = {"QUANTIZE_PER_TENSOR": per_tensor, "QUANTIZE_PER_CHANNEL": per_channel}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_averages_lose_no_more_than_the_reference(name, world):
    local = []
    for rank in range(world):
        module = Task()
        module(rank % 2).backward()
        local.append(flat_gradient(module))
    exact = torch.stack(local).double().mean(0)
    reference = QUANTISED[name](local)
    (result, *_) = run(world, registered, name, "ours")
    error = (result.double() - exact).abs().max()
    assert error <= 1.01 * most_lost(local)
    if world == 2:  # one encoding, as in the reference, with scales as fine or finer
        assert error <= 1.05 * (reference.double() - exact).abs().max()
    torch.testing.assert_close(result, reference, **TOLERANCES[name])


@pytest.mark.parametrize("name", NAMES)
def test_every_type_trains(name):
    one, two = run(2, trained, name)
    if name == "NOOP":
        assert not torch.equal(one, two)
        return
    assert torch.equal(one, two)
    plain = run(2, trained, None)[0]
    start = flat_parameters(net())
    # What is of low rank takes more than five steps, but the right way.
    share = 1 if "POWER_SGD" in name else 0.05
    assert (one - plain).norm() <= share * (plain - start).norm()


def trained(rank, world, name):
    ddp = make_ddp()
    if name is None:
        return train(ddp, rank, 5)
    state = None
    if "POWER_SGD" in name:
        rank_of_matrices = 2 if name.endswith("RANK2") else 1
        state = PowerSGDState(
            None, rank_of_matrices, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8
        )
    register_ddp_comm_hook(DDPCommHookType[name], ddp, state)
    return train(ddp, rank, 5)


def values(rank, world):
    ddp = make_ddp()
    DDPCommHookType.POWER_SGD_RANK2.value(model=ddp, state=dist.group.WORLD)
    errors = [
        error_of(register_ddp_comm_hook, DDPCommHookType.FP16_COMPRESS, make_ddp(), 3),
        error_of(
            register_ddp_comm_hook,
            DDPCommHookType.FP16_COMPRESS,
            make_ddp(),
            PowerSGDState(None),
        ),
        error_of(register_ddp_comm_hook, "FP16_COMPRESS", make_ddp()),
        error_of(
            register_ddp_comm_hook,
            DDPCommHookType.POWER_SGD,
            make_ddp(),
            "state" if rank == 1 else None,
        ),
    ]
    return gradwire.stats(ddp)["hook"], errors


def test_values_and_states():
    expected = "as process group, expected torch.distributed.ProcessGroup or None"
    for rank, (hook, errors) in enumerate(run(2, values)):
        assert hook == "powersgd:rank=2"
        assert errors[:3] == [
            ("TypeError", f"got a int {expected}"),
            ("TypeError", f"got a PowerSGDState {expected}"),
            ("TypeError", "got a str, expected a DDPCommHookType"),
        ]
        assert errors[3][0] == ("TypeError" if rank == 1 else "ValueError")
        assert f"got a str {expected}" in errors[3][1]
