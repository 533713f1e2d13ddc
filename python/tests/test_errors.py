"""What goes wrong is said clearly, on every rank, and nothing hangs."""

import datetime
import os
import signal
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from models import make_ddp, net, train
from ranks import error_of, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import _versions
from gradwire.ddp_comm_hooks.default_hooks import fp16_compress_hook


def test_another_torch_is_an_import_error():
    with pytest.raises(ImportError) as error:
        _versions.check_torch(installed="2.12.1+cpu", built_for="2.13.0")
    assert str(error.value) == (
        "gradwire was built for torch 2.13.0, but torch 2.12.1+cpu is installed: build "
        "gradwire again in this environment with pip install --no-build-isolation "
        "--force-reinstall --no-deps"
    )
    _versions.check_torch(installed="2.13.0+cu130", built_for="2.13.0")


def test_the_installed_torch_is_checked_at_import():
    code = (
        "import torch; torch.__version__ = '2.99.0'\n"
        "try:\n import gradwire\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert "but torch 2.99.0 is installed" in done.stdout
    assert done.stderr == ""


def test_what_is_no_ddp():
    kind, text = error_of(gradwire.attach, net(), "int8")
    assert kind == "TypeError"
    assert text == (
        "got a Sequential, expected a torch.nn.parallel.DistributedDataParallel"
    )


def bad_specs(rank, world):
    ddp = make_ddp()
    errors = [
        error_of(gradwire.attach, ddp, "int9"),
        error_of(gradwire.attach, ddp, "int8:block=7"),
        error_of(gradwire.attach, ddp, 8),
        error_of(gradwire.stats, ddp),
        error_of(gradwire.attach, ddp, "int8", process_group="world"),
    ]
    gradwire.attach(ddp, "int8")  # nothing is lost
    train(ddp, rank, 1)
    return errors


def test_bad_arguments():
    for errors in run(2, bad_specs):
        kinds, texts = zip(*errors)
        assert kinds == ("ValueError", "ValueError", "TypeError", "ValueError", "TypeError")
        assert "int9" in texts[0] and "did you mean" in texts[0].lower()
        assert "block" in texts[1] and "from 32 to 1048576" in texts[1]
        assert texts[2] == "got a int as hook, expected a spec string"
        assert "call gradwire.attach(ddp, hook) first" in texts[3]
        assert "got a str as process group" in texts[4]


def different_hooks(rank, world):
    ddp = make_ddp()
    error = error_of(gradwire.attach, ddp, "int8" if rank == 0 else "int4")
    alone = error_of(gradwire.attach, ddp, "int8" if rank == 0 else "int8:blok=1")
    gradwire.attach(ddp, "int8")
    train(ddp, rank, 1)
    again = error_of(gradwire.attach, ddp, "fp16" if rank == 0 else "bf16")
    return error, alone, again


def test_ranks_must_agree():
    for rank, (error, alone, again) in enumerate(run(2, different_hooks)):
        assert error == (
            "ValueError",
            "[gradwire.comm] ranks do not agree on attach: hook is 'int8' on rank 0 but "
            "'int4' on rank 1",
        )
        assert alone[0] == "ValueError" and "blok" in alone[1]
        assert "ranks do not agree on attach: hook is 'fp16' on rank 0" in again[1]


def different_models(rank, world):
    # DDP compares shapes itself, names it does not.
    module = nn.Sequential()
    module.add_module("a" if rank == 0 else "b", nn.Linear(2, 2))
    return error_of(gradwire.attach, DistributedDataParallel(module), "int8")


def test_models_must_agree():
    for kind, text in run(2, different_models):
        assert kind == "ValueError"
        assert "parameter 0 is 'a.weight Float [2, 2]" in text


def refused(rank, world):
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torch.nn.parallel.distributed import _MixedPrecision

    errors = []
    ddp = make_ddp(mixed_precision=_MixedPrecision(torch.float16))
    errors.append(error_of(gradwire.attach, ddp, "int8"))
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        errors.append(error_of(gradwire.attach, make_ddp(), "int8"))
    module = net()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    errors.append(error_of(gradwire.attach, make_ddp(module), "int8"))
    ddp = make_ddp(skip_all_reduce_unused_params=True)
    errors.append(error_of(gradwire.attach, ddp, "int8"))
    module = nn.Sequential(net(), nn.Linear(4, 4).requires_grad_(False))
    delayed = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    ddp = make_ddp(
        module,
        delay_all_reduce_named_params=delayed,
        param_to_hook_all_reduce=delayed[0][1],
    )
    errors.append(error_of(gradwire.attach, ddp, "int8"))
    ddp = make_ddp()
    ddp.register_comm_hook(None, lambda state, bucket: None)
    errors.append(error_of(gradwire.attach, ddp, "int8"))
    ddp = make_ddp()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    errors.append(error_of(gradwire.attach, ddp, "allreduce"))
    ddp = make_ddp()
    gradwire.attach(ddp, "allreduce")  # registers nothing
    ddp.register_comm_hook(None, lambda state, bucket: None)
    errors.append(error_of(gradwire.attach, ddp, "int8"))
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    errors.append(error_of(ddp.register_comm_hook, None, fp16_compress_hook))
    gradwire.attach(ddp, "fp16")  # what was refused has left no trace
    return errors


def test_what_cannot_be_attached_to_is_refused_with_the_reason():
    for errors in run(2, refused):
        assert [kind for kind, _ in errors] == ["ValueError"] * 8 + ["RuntimeError"]
        texts = [text for _, text in errors]
        assert "mixed_precision, which registers a hook of its own" in texts[0]
        assert "the Python reducer" in texts[1]
        assert "in-backward optimizers" in texts[2]
        assert "skip_all_reduce_unused_params, under which" in texts[3]
        assert "parameters are all delayed" in texts[4]
        assert "'refused.<locals>.<lambda>' registered" in texts[5]
        assert "'BuiltinCommHookType.FP16_COMPRESS' registered" in texts[6]
        assert "'refused.<locals>.<lambda>' registered" in texts[7]


def refused_on_one_rank(rank, world):
    ddp = make_ddp()
    if rank == 1:
        ddp.register_comm_hook(None, lambda state, bucket: None)
    return error_of(gradwire.attach, ddp, "int8")


def test_a_refusal_on_one_rank_is_an_error_on_all():
    for kind, text in run(2, refused_on_one_rank):
        assert kind == "ValueError" and "a Reducer takes only one hook" in text


def outside_of_the_group(rank, world):
    pair = dist.new_group([0, 1])
    ddp = make_ddp()
    errors = [
        error_of(gradwire.attach, ddp, "int8", process_group=pair),
        error_of(gradwire.attach, ddp, "int8" if rank else 8),
        error_of(
            gradwire.attach, ddp, "int8", process_group=[pair, None, None][rank]
        ),
    ]
    gradwire.attach(ddp, "int8")  # nothing is lost
    train(ddp, rank, 1)
    return errors


def test_wrong_arguments_on_one_rank_are_errors_on_all():
    for rank, errors in enumerate(run(3, outside_of_the_group)):
        kinds, texts = zip(*errors)
        assert "this rank is not a member of the process group" in texts[0]
        assert "got a int as hook, expected a spec string" in texts[1]
        assert kinds == ("ValueError", "ValueError" if rank else "TypeError", "ValueError")
        assert "process group is 'one of its own' on rank 0 but 'the DDP's'" in texts[2]


def sparse(rank, world):
    module = nn.Embedding(8, 2, sparse=True)
    ddp = DistributedDataParallel(module)
    gradwire.attach(ddp, "int8")
    ids = torch.tensor([rank, 5])
    error = error_of(lambda: ddp(ids).sum().backward())
    gradwire.attach(ddp, "int8:sparse=pass")
    ddp.zero_grad()
    ddp(ids).sum().backward()
    return error, module.weight.grad.to_dense()


def test_an_error_of_the_hook_surfaces_in_backward_and_the_next_step_works():
    expected = torch.zeros(8, 2)
    expected[0] = expected[1] = 0.5
    expected[5] = 1
    for error, gradient in run(2, sparse):
        assert error[0] == "RuntimeError"
        assert "hook int8, bucket" in error[1] and "sparse" in error[1]
        assert torch.equal(gradient, expected)


def lost_peer(rank, world):
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    train(ddp, rank, 3)  # DDP itself communicates in the first two
    gradwire.compressed_all_reduce(torch.ones(9))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [
        error_of(lambda: train(ddp, rank, 1)),
        error_of(gradwire.compressed_all_reduce, torch.ones(9)),
    ]


def lone_survivor(folder):
    return subprocess.run(
        [sys.executable, "-W", "ignore", __file__, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_lost_peer_is_named(tmp_path):
    done = lone_survivor(tmp_path)
    assert done.stderr == ""
    in_backward, in_collective = done.stdout.splitlines()
    assert in_backward.startswith("RuntimeError [gradwire.comm] "), done
    assert "rank 1 does not answer)" in in_backward
    assert in_collective.startswith("RuntimeError [gradwire.comm] "), done
    assert "failed on rank 0 of 2" in in_collective


def pickled(rank, world):
    import pickle

    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    copy = pickle.loads(pickle.dumps(ddp))
    error = error_of(gradwire.stats, copy)
    gradwire.attach(copy, "int8")
    train(copy, rank, 1)
    # Neither has a copy the Python function of its original, though it lists it.
    ddp = make_ddp()
    ddp.register_comm_hook(None, fp16_compress_hook)
    gradwire.attach(pickle.loads(pickle.dumps(ddp)), "int8")
    return error


def test_an_unpickled_ddp_has_no_hook():
    for kind, text in run(2, pickled):
        assert kind == "ValueError" and "unpickled or copied has lost its hook" in text


if __name__ == "__main__":
    # One of two ranks that outlives the other.
    import multiprocessing

    def survivor(rank, folder):
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(f"{folder}/store", 2),
            rank=rank,
            world_size=2,
            timeout=datetime.timedelta(seconds=20),
        )
        for kind, text in lost_peer(rank, 2):
            print(kind, text, flush=True)
        os._exit(0)

    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=survivor, args=(rank, sys.argv[1])) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
