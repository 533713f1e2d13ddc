"""State of hooks in files and dictionaries: training goes on with the same bits."""

import os

import pytest
import torch
from models import flat_parameters, make_ddp, train
from ranks import error_of, run

import gradwire

HOOKS = ["fp16", "int8", "int4:rounding=stochastic", "powersgd:start=2,rank=2"]


def straight(rank, world, hook):
    ddp = make_ddp()
    gradwire.attach(ddp, hook)
    train(ddp, rank, 4)
    return train(ddp, rank, 3, first=4)


def interrupted(rank, world, hook, folder, as_dict):
    ddp = make_ddp()
    gradwire.attach(ddp, hook)
    train(ddp, rank, 4)
    model = {name: value.clone() for name, value in ddp.module.state_dict().items()}
    path = os.path.join(folder, f"rank{rank}.pt")
    if as_dict:
        torch.save(gradwire.hook_state_dict(ddp), path)
    else:
        gradwire.save_hook_state(ddp, folder)
    del ddp
    other = make_ddp()
    other.module.load_state_dict(model)
    gradwire.attach(other, hook)
    if as_dict:
        gradwire.load_hook_state_dict(other, torch.load(path, weights_only=True))
    else:
        gradwire.load_hook_state(other, folder, strict=True)
    return train(other, rank, 3, first=4)


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_goes_on_with_the_same_bits(hook, as_dict, tmp_path):
    expected = run(2, straight, hook)
    resumed = run(2, interrupted, hook, str(tmp_path), as_dict)
    for rank in range(2):
        assert torch.equal(resumed[rank], expected[rank])


def saved(rank, world, folder):
    ddp = make_ddp()
    gradwire.attach(ddp, "int4")
    train(ddp, rank, 4)
    gradwire.save_hook_state(ddp, folder)
    return gradwire.hook_state_dict(ddp)["residuals"]


def loaded(rank, world, folder):
    ddp = make_ddp()
    gradwire.attach(ddp, "int4")
    error = error_of(gradwire.load_hook_state, ddp, folder, strict=True)
    gradwire.load_hook_state(ddp, folder)
    residuals = gradwire.hook_state_dict(ddp)["residuals"]
    return residuals, train(ddp, rank, 2), error


@pytest.mark.parametrize("worlds", [(4, 2), (2, 3)])
def test_another_world_owes_what_the_one_before_owed(worlds, tmp_path):
    before = run(worlds[0], saved, str(tmp_path))
    after = run(worlds[1], loaded, str(tmp_path))
    for name in before[0]:
        owed = sum(residuals[name] for residuals in before)
        assert owed.abs().max() > 0
        now = [residuals[name] for residuals, _, _ in after if name in residuals]
        torch.testing.assert_close(sum(now), owed)
    for _, parameters, (kind, text) in after:
        assert torch.equal(parameters, after[0][1])
        assert kind == "ValueError" and f"is of a world of {worlds[0]}, expected" in text


def refuses(rank, world, folder):
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    train(ddp, rank, 2)
    state = gradwire.hook_state_dict(ddp)
    gradwire.save_hook_state(ddp, folder)
    swapped = dict(state, rank=1 - rank)
    damaged = {key: value for key, value in state.items() if key != "layout"}
    errors = [
        error_of(gradwire.load_hook_state_dict, ddp, swapped),
        error_of(gradwire.load_hook_state_dict, ddp, damaged if rank else state),
        error_of(gradwire.load_hook_state_dict, ddp, dict(state, world=3)),
        error_of(gradwire.load_hook_state_dict, ddp, dict(state, layout=[[0, 99]])),
        error_of(gradwire.load_hook_state, ddp, os.path.join(folder, "nowhere")),
        error_of(gradwire.load_hook_state_dict, ddp, dict(state, numbers={})),
        error_of(
            gradwire.load_hook_state_dict,
            ddp,
            dict(state, residuals={"0.bias": torch.zeros(40 if rank else 39)}),
        ),
    ]
    gradwire.attach(ddp, "int4")
    errors.append(error_of(gradwire.load_hook_state, ddp, folder))
    train(ddp, rank, 1)
    return errors, flat_parameters(ddp)


def test_what_does_not_fit_is_refused_on_all_ranks(tmp_path):
    results = run(2, refuses, str(tmp_path))
    for errors, parameters in results:
        assert {kind for kind, _ in errors} == {"ValueError"}
        texts = [text for _, text in errors]
        assert "is of rank" in texts[0]
        assert "the hook state has no 'layout'" in texts[1]
        assert "is of a world of 3, expected 2" in texts[2]
        assert "has no buckets for 6 parameters" in texts[3]
        assert "nowhere" in texts[4] and "does not exist" in texts[4]
        assert "the state of 'int8' has no number 'step'" in texts[5]
        assert "a residual of 39 elements for parameter '0.bias', expected 40" in texts[6]
        assert "is of hook 'int8', expected 'int4'" in texts[7]
        assert torch.equal(parameters, results[0][1])
