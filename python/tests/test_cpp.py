"""The same model, data and hook give the same bits from C++ and from Python."""

import os
import pathlib
import subprocess

import pytest
import torch
from models import batch, make_ddp, net
from ranks import run

import gradwire

BUILD = pathlib.Path(
    os.environ.get("GRADWIRE_BUILD")
    or pathlib.Path(__file__).resolve().parents[2] / "build" / "release"
)
SIZES = (64, 600, 600, 10)  # two buckets
STEPS = 5


def inputs(rank):
    return [batch(rank, step, rows=16, width=SIZES[0]) for step in range(STEPS)]


def python_side(rank, world, hook):
    ddp = make_ddp(net(SIZES), bucket_cap_mb=None)
    gradwire.attach(ddp, hook)
    sgd = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    for x in inputs(rank):
        sgd.zero_grad()
        ddp(x).square().sum().backward()
        sgd.step()
    assert len(gradwire.stats(ddp)["bucket_bytes"]) == 2
    return [parameter.detach() for parameter in ddp.parameters()]


def cpp_side(world, hook, folder):
    torch.save([p.detach() for p in net(SIZES).parameters()], folder / "parameters.pt")
    for rank in range(world):
        torch.save(inputs(rank), folder / f"inputs{rank}.pt")
    twin = BUILD / "tests" / "gradwire_twin"
    subprocess.run(
        [BUILD / "gradwire", "run", "--nproc", str(world), "--", twin, folder, hook],
        check=True,
        timeout=60,
    )
    return [torch.load(folder / f"cpp{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "hook",
    ["allreduce", "fp16", "bf16", "int8", "int4:rounding=stochastic", "powersgd:start=2"],
)
def test_same_bits_from_both_languages(hook, world, tmp_path):
    ours = run(world, python_side, hook)
    theirs = cpp_side(world, hook, tmp_path)
    for rank in range(world):
        for mine, other in zip(ours[rank], theirs[rank], strict=True):
            assert torch.equal(mine, other)
