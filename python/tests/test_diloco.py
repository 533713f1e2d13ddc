"""DiLoCo from Python."""

import torch
from models import batch, flat_parameters, net
from ranks import error_of, run

from gradwire.optim import DiLoCo


def inner(model, rank, step):
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    model.zero_grad()
    model(batch(rank, step)).square().mean().backward()
    sgd.step()


def outer(rank, world, options, saved=None):
    model = net(seed=1 + rank)  # all begin with the first rank's
    diloco = DiLoCo(model.parameters(), period=3, **options)
    if saved:
        diloco.load_state_dict(saved[rank])
    state = None
    for step in range(diloco.stats()["steps"], 9):
        inner(model, rank, step)
        diloco.step()
        if step == 4:
            state = diloco.state_dict()
    anchor = torch.cat([part.reshape(-1) for part in diloco.anchor()])
    diloco.finish()
    return flat_parameters(model), anchor, diloco.stats(), state


def alone():
    """Two ranks one after the other, with PyTorch's SGD outside."""
    shared = net(seed=1)
    sgd = torch.optim.SGD(shared.parameters(), 0.7, momentum=0.9, nesterov=True)
    for begin in (0, 3, 6):
        for parameter in shared.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for rank in range(2):
            model = net(seed=1)
            model.load_state_dict(shared.state_dict())
            for step in range(begin, begin + 3):
                inner(model, rank, step)
            for parameter, own in zip(shared.parameters(), model.parameters()):
                parameter.grad += (parameter.detach() - own.detach()) / 2
        sgd.step()
    return flat_parameters(shared)


def test_outer_steps_are_those_of_nesterov_on_averaged_differences():
    one, two = run(2, outer, {})
    torch.testing.assert_close(one[0], alone(), rtol=1e-5, atol=1e-6)
    assert torch.equal(one[0], two[0]) and torch.equal(one[0], one[1])
    assert one[2]["outer_steps"] == 3


def test_fragments_on_their_way_and_states():
    options = {"average": "int4", "fragments": 2, "delay": 1}
    one, two = run(2, outer, options)
    assert torch.equal(one[1], two[1]) and not torch.equal(one[1], run(2, outer, {})[0][1])
    states = [one[3], two[3]]
    for expected, resumed in zip((one, two), run(2, outer, options, states)):
        assert torch.equal(expected[0], resumed[0])
        assert torch.equal(expected[1], resumed[1])


def wrong(rank, world):
    parameters = list(net().parameters())
    return (
        error_of(DiLoCo, parameters, period=0),
        error_of(DiLoCo, parameters, average="int4" if rank else "int8"),
        error_of(DiLoCo, [3]),
    )


def test_wrong_arguments():
    for period, average, kind in run(2, wrong):
        assert period[0] == "ValueError" and "period is 0" in period[1]
        assert average[0] == "ValueError" and "int4" in average[1] and "int8" in average[1]
        assert kind[0] == "TypeError"
