"""gradwire.ddp_comm_hooks against PyTorch's own hooks and against references."""

import pickle

import pytest
import torch
import torch.distributed as dist
from models import Task, batch, exact_gradient, flat_gradient, make_ddp, net, train
from quantized import most_lost, per_channel, per_tensor
from ranks import error_of, run
from torch.distributed.algorithms import ddp_comm_hooks as theirs

import gradwire
from gradwire import ddp_comm_hooks as ours
from gradwire.ddp_comm_hooks import (
    DDPCommHookType,
    default_hooks,
    quantization_hooks,
    register_ddp_comm_hook,
)
from gradwire.ddp_comm_hooks.debugging_hooks import noop_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)

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


def gradient_of(ddp, rank):
    ddp.zero_grad()
    ddp(rank % 2).backward()
    return flat_gradient(ddp)


def registered(rank, world, name, library):
    ddp = make_ddp(Task())
    if library is None:
        return gradient_of(ddp, rank)
    module = ours if library == "ours" else theirs
    module.register_ddp_comm_hook(module.DDPCommHookType[name], ddp)
    return gradient_of(ddp, rank)


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
    assert torch.equal(one, two) or name == "NOOP"


def trained(rank, world, name):
    ddp = make_ddp()
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
    ]
    return gradwire.stats(ddp)["hook"], errors


def test_values_and_states():
    for hook, errors in run(2, values):
        assert hook == "powersgd:rank=2"
        assert errors == [
            (
                "TypeError",
                "got a int as state, expected a process group, a PowerSGDState or None",
            ),
            (
                "TypeError",
                "hook 'fp16' got a PowerSGDState, expected a process group or None",
            ),
            ("TypeError", "got a str, expected a DDPCommHookType"),
        ]


FUNCTIONS = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "pertensor": quantization_hooks.quantization_pertensor_hook,
    "perchannel": quantization_hooks.quantization_perchannel_hook,
    "fp16(allreduce)": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    "bf16(allreduce)": default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    "fp16(python)": default_hooks.fp16_compress_wrapper(
        lambda state, bucket: default_hooks.allreduce_hook(None, bucket)
    ),
}


def by_function(rank, world, name, as_group):
    ddp = make_ddp(Task())
    ddp.register_comm_hook(dist.group.WORLD if as_group else None, FUNCTIONS[name])
    results = []
    for _ in range(2):
        results.append(gradient_of(ddp, rank))
    return results


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_register_comm_hook(name, world):
    (expected, *_) = run(world, registered, name, None)
    results = run(world, by_function, name, world == 2)
    limit = 1e-2 * expected.abs().max()
    for rank_results in results:
        for step in range(2):
            assert torch.equal(rank_results[step], results[0][step])
            assert (rank_results[step] - expected).abs().max() <= limit


def noop(rank, world):
    ddp = make_ddp(Task())
    ddp.register_comm_hook(None, noop_hook)
    local = Task()
    local(rank).backward()
    return torch.equal(gradient_of(ddp, rank), flat_gradient(local))


def test_noop_hook():
    assert run(2, noop) == [True, True]


POWER = {
    "powersgd": powerSGD_hook,
    "batched": batched_powerSGD_hook,
    "fp16(powersgd)": default_hooks.fp16_compress_wrapper(powerSGD_hook),
    "bf16(batched)": default_hooks.bf16_compress_wrapper(batched_powerSGD_hook),
}


def power(rank, world, name, resume):
    state = PowerSGDState(
        None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=2,
        min_compression_rate=0.5,
    )
    ddp = make_ddp()
    ddp.register_comm_hook(state, POWER[name])
    train(ddp, rank, 4)
    if resume:
        module = net()
        module.load_state_dict(ddp.module.state_dict())
        state = pickle.loads(pickle.dumps(state))
        assert state.process_group is dist.group.WORLD
        ddp = make_ddp(module)
        ddp.register_comm_hook(state, POWER[name])
    parameters = train(ddp, rank, 3, first=4)
    return parameters, state.iter, state.compression_stats()


@pytest.mark.parametrize("name", POWER)
def test_power_sgd_by_function(name):
    one, two = run(2, power, name, False)
    assert torch.equal(one[0], two[0])
    assert one[1] == 7
    rate, before, after = one[2]
    assert before > after > 0 and rate == pytest.approx(before / after)


def test_power_sgd_goes_on_after_pickling():
    (straight, *_), _ = run(2, power, "powersgd", False)
    one, two = run(2, power, "powersgd", True)
    assert torch.equal(one[0], two[0])
    assert one[1] == 7
    # The optimizer's momentum is lost in both.
    torch.testing.assert_close(one[0], straight, rtol=1e-4, atol=1e-5)


def test_arguments_of_power_sgd_state():
    state = PowerSGDState(None, 4, 10, use_error_feedback=False)
    assert state.matrix_approximation_rank == 4
    assert state.start_powerSGD_iter == 10
    assert state.iter == 0
    assert state.spec("powersgd") == (
        "powersgd:rank=4,start=10,min_compression_rate=2,ef=off,warm_start=on,"
        "epsilon=0,seed=0,stats=10000,batch=off"
    )
    PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    kind, text = error_of(PowerSGDState, None, start_powerSGD_iter=1)
    assert kind == "ValueError" and "start_powerSGD_iter is 1" in text
    kind, text = error_of(PowerSGDState, None, matrix_approximation_rank=0)
    assert kind == "ValueError" and "from 1 to 1024" in text
    assert error_of(setattr, state, "warm_start", False) == (
        "AttributeError",
        "'warm_start' is fixed once the state is made: make another PowerSGDState",
    )


def two_ddps(rank, world):
    one, two = make_ddp(), make_ddp(net(seed=2))
    one.register_comm_hook(None, default_hooks.fp16_compress_hook)
    two.register_comm_hook(None, default_hooks.fp16_compress_hook)
    x = batch(rank, 0)
    (one(x).square().sum() + two(x).sum()).backward()
    return flat_gradient(one), flat_gradient(two)


def test_functions_serve_several_ddps():
    one, two = run(2, two_ddps)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def clipped(group, bucket):
    average = default_hooks.fp16_compress_hook(group, bucket)
    return average.then(lambda future: future.value().clamp_(-0.1, 0.1))


def signs(group, bucket):
    return gradwire.compressed_all_reduce(
        bucket.buffer().sign(), "int8", group, average=True, async_op=True
    )


def with_hooks_of_their_own(rank, world):
    gradients = []
    for hook in (clipped, signs):
        ddp = make_ddp()
        ddp.register_comm_hook(None, hook)
        ddp(batch(rank, 0)).square().sum().backward()
        gradients.append(flat_gradient(ddp))
    return gradients


def test_functions_and_collectives_inside_of_other_hooks():
    average = exact_gradient(2, 0)
    local = []
    for rank in range(2):
        module = net()
        module(batch(rank, 0)).square().sum().backward()
        local.append(flat_gradient(module))
    for clip, sign in run(2, with_hooks_of_their_own):
        expected = average.clamp(-0.1, 0.1).float()
        torch.testing.assert_close(clip, expected, rtol=1e-3, atol=1e-3)
        expected = (local[0].sign() + local[1].sign()) / 2
        torch.testing.assert_close(sign, expected, rtol=0, atol=0.02)
