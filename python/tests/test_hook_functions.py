"""Functions of gradwire.ddp_comm_hooks for DDP's register_comm_hook."""

import pickle

import pytest
import torch
import torch.distributed as dist
from models import (
    Task,
    batch,
    exact_gradient,
    flat_gradient,
    make_ddp,
    net,
    task_gradient,
    train,
)
from ranks import error_of, run

import gradwire
from gradwire.ddp_comm_hooks import default_hooks, quantization_hooks
from gradwire.ddp_comm_hooks.debugging_hooks import noop_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)


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


def plain(rank, world):
    return task_gradient(make_ddp(Task()), rank)


def by_function(rank, world, name, as_group):
    ddp = make_ddp(Task())
    ddp.register_comm_hook(dist.group.WORLD if as_group else None, FUNCTIONS[name])
    results = []
    for _ in range(2):
        results.append(task_gradient(ddp, rank))
    return results


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_register_comm_hook(name, world):
    (expected, *_) = run(world, plain)
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
    return torch.equal(task_gradient(ddp, rank), flat_gradient(local))


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
    assert state._spec("powersgd") == (
        "powersgd:rank=4,start=10,min_compression_rate=2,ef=off,warm_start=on,"
        "epsilon=0,seed=0,stats=10000,batch=off"
    )
    PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    PowerSGDState(None, min_compression_rate=0)  # compress whatever can be
    kind, text = error_of(PowerSGDState, None, start_powerSGD_iter=1)
    assert kind == "ValueError" and "start_powerSGD_iter is 1" in text
    kind, text = error_of(PowerSGDState, None, matrix_approximation_rank=0)
    assert kind == "ValueError" and "from 1 to 1024" in text
    assert error_of(setattr, state, "warm_start", False) == (
        "AttributeError",
        "'warm_start' cannot be changed: make another PowerSGDState",
    )


def two_ddps(rank, world):
    one, two = make_ddp(), make_ddp(net(seed=2))
    one.register_comm_hook(None, default_hooks.fp16_compress_hook)
    two.register_comm_hook(None, default_hooks.fp16_compress_hook)
    x = batch(rank, 0)
    (one(x).square().sum() + two(x).square().sum()).backward()
    return flat_gradient(one), flat_gradient(two)


def test_functions_serve_several_ddps():
    for results, others, seed in zip(*run(2, two_ddps), (1, 2)):
        assert torch.equal(results, others)
        exact = exact_gradient(2, 0, lambda: net(seed=seed))
        assert (results.double() - exact).abs().max() <= 2e-3 * exact.abs().max()


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


def waiting_in_a_callback(rank, world):
    def hook(group, bucket):
        def second(future):
            gradwire.compressed_all_reduce(torch.ones(9), "fp16", group)
            return future.value()

        if rank == 1:
            dist.barrier()  # rank 0 has hung its callback on the future
            gradwire.compressed_all_reduce(bucket.buffer(), "fp16", group, average=True)
            future = gradwire.compressed_all_reduce(
                torch.ones(9), "fp16", group, async_op=True
            )
            return future.then(lambda _: bucket.buffer())
        future = default_hooks.fp16_compress_hook(group, bucket).then(second)
        dist.barrier()
        return future

    gradwire.compressed_all_reduce(torch.ones(9), "fp16")
    ddp = make_ddp()
    ddp.register_comm_hook(None, hook)
    loss = ddp(batch(rank, 0)).square().sum()
    return error_of(loss.backward) if rank == 0 else loss.backward()


def test_a_callback_that_waits_is_an_error():
    kind, text = run(2, waiting_in_a_callback)[0]
    assert "[gradwire.comm] a callback waits for a Future that is not done" in text
