"""DiLoCo from Python."""

import pickle

import torch
from models import batch, flat_parameters, net
from ranks import error_of, run

from gradwire.optim import DiLoCo


def inner(model, rank, step):
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    model.zero_grad()
    model(batch(rank, step)).square().mean().backward()
    sgd.step()


def outer(rank, saved=None, **options):
    model = net(seed=1 + rank)  # all begin with the first rank's
    diloco = DiLoCo(model.parameters(), period=3, **options)
    if saved:
        diloco.load_state_dict(saved)
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


def plain_and_in_fragments(rank, world):
    options = {"average": "int4", "fragments": 2, "delay": 1}
    plain, straight = outer(rank), outer(rank, **options)
    resumed = outer(rank, pickle.loads(pickle.dumps(straight[3])), **options)
    return plain, straight, resumed


def test_outer_steps_are_those_of_nesterov_on_averaged_differences():
    results = run(2, plain_and_in_fragments)
    expected, anchor = alone(), results[0][1][1]
    for plain, straight, resumed in results:
        torch.testing.assert_close(plain[0], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(plain[0], results[0][0][0]) and torch.equal(plain[0], plain[1])
        assert plain[2]["outer_steps"] == 3
        # int4 loses something, but on all ranks the same.
        assert torch.equal(straight[1], anchor) and not torch.equal(anchor, plain[1])
        assert torch.equal(straight[0], resumed[0])
        assert torch.equal(straight[1], resumed[1])


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
