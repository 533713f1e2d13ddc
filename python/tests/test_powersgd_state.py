"""States that the PowerSGD functions are given."""

import pytest
import torch
from models import flat_gradient, flat_parameters, make_ddp, net, train
from ranks import error_of, run
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs
from torch_state import without_numpy

from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)

OPTIONS = {
    "matrix_approximation_rank": 2,
    "start_powerSGD_iter": 2,
    "min_compression_rate": 0.5,
}


def power(rank, world, library, way):
    if library == "ours":
        state = PowerSGDState(None, **OPTIONS)
    else:
        with without_numpy():
            state = theirs.PowerSGDState(None, **OPTIONS)
    ddp = make_ddp()
    if way == "type":
        register_ddp_comm_hook(DDPCommHookType.POWER_SGD, ddp, state)
    else:
        ddp.register_comm_hook(state, powerSGD_hook)
    parameters = train(ddp, rank, 5)
    return parameters, state.iter, state.compression_stats()


@pytest.mark.parametrize("way", ["function", "type"])
def test_a_state_of_pytorchs_does_what_ours_does(way):
    (expected, *counts), _ = run(2, power, "ours", way)
    assert counts[0] == 5 and counts[1][0] > 1
    for parameters, *now in run(2, power, "theirs", way):
        assert torch.equal(parameters, expected)
        assert now == counts


def wrong(rank, world, state):
    ddp = make_ddp()
    ddp.register_comm_hook(state, powerSGD_hook)
    return error_of(train, ddp, rank, 1)


def in_reverse(rank, world, steps_before):
    """Gradients come in another order than parameters, so buckets are rebuilt."""
    state = PowerSGDState(None, **OPTIONS)
    ddp = make_ddp(net())
    ddp.register_comm_hook(state, powerSGD_hook)
    for step in range(6):
        if step == steps_before:
            state.iter = state.iter
        train(ddp, rank, 1, first=step)
    return flat_parameters(ddp)


def test_a_state_whose_iter_is_set_goes_on_with_the_same_bits():
    expected = run(2, in_reverse, None)
    for parameters, again in zip(expected, run(2, in_reverse, 4)):
        assert torch.equal(parameters, again)


@pytest.mark.parametrize("state", [None, 4])
def test_what_is_no_state_is_a_type_error(state):
    name = type(state).__name__
    expected = f"got a {name} as state of powersgd, expected a PowerSGDState"
    assert run(2, wrong, state) == [("TypeError", expected)] * 2



def in_turn(rank, world):
    state = PowerSGDState(None, **OPTIONS)
    ddps, gradients = [], []
    for hook in (powerSGD_hook, batched_powerSGD_hook):
        ddps.append(make_ddp(net()))
        ddps[-1].register_comm_hook(state, hook)
        train(ddps[-1], rank, 3)
    for ddp in ddps:  # both go on
        ddp.zero_grad()
        train(ddp, rank, 1, first=3)
        gradients.append(flat_gradient(ddp))
    return gradients, state.iter, state.__getstate__()["remembered"]


def alone(rank, world):
    ddp = make_ddp(net())
    ddp.register_comm_hook(PowerSGDState(None, **OPTIONS), powerSGD_hook)
    train(ddp, rank, 3)
    ddp.zero_grad()
    train(ddp, rank, 1, first=3)
    return flat_gradient(ddp)


def test_one_state_for_both_functions_in_turn():
    expected, _ = run(2, alone)
    one, two = run(2, in_turn)
    for gradients, others in zip(one[0], two[0]):
        assert torch.equal(gradients, others)
    # What the other function did in between has changed nothing.
    assert torch.equal(one[0][0], expected)
    assert one[1] == 8
    assert {name: state["numbers"]["step"] for name, state in one[2].items()} == {
        "powersgd": 4,
        "batched_powersgd": 3 + 3 + 1,  # it began where the state was
    }
