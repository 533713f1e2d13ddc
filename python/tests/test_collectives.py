"""gradwire.compressed_all_reduce."""

import pytest
import torch
import torch.distributed as dist
from ranks import error_of, run

import gradwire


def values(rank, n=1000):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank))


def reduced(rank, world, spec, average):
    tensor = values(rank)
    assert gradwire.compressed_all_reduce(tensor, spec, average=average) is None
    later = values(rank)
    future = gradwire.compressed_all_reduce(later, spec, average=average, async_op=True)
    assert future.wait() is not None
    return tensor, later


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("spec,limit", [("fp16", 2e-3), ("int8", 3e-2), ("int4", 0.5)])
def test_sums_and_averages(spec, limit, world):
    exact = sum(values(rank).double() for rank in range(world))
    for average in (False, True):
        results = run(world, reduced, spec, average)
        expected = exact / world if average else exact
        for result, later in results:
            assert torch.equal(result, results[0][0])
            assert torch.equal(later, results[0][1])
            error = (result.double() - expected).abs().max()
            assert error <= limit * expected.abs().max()


def errors(rank, world):
    pair = dist.new_group([0, 1])
    outside = rank == 2
    return [
        error_of(gradwire.compressed_all_reduce, torch.ones(3), "int9"),
        error_of(gradwire.compressed_all_reduce, torch.ones(3, dtype=torch.long)),
        error_of(gradwire.compressed_all_reduce, [1.0]),
        error_of(gradwire.compressed_all_reduce, torch.ones(3), "int8", pair)
        if outside
        else error_of(gradwire.compressed_all_reduce, torch.ones(3), "int8", "pair"),
    ]


def test_bad_arguments():
    for rank, results in enumerate(run(3, errors)):
        kinds, texts = zip(*results)
        assert kinds[:3] == ("ValueError", "ValueError", "TypeError")
        assert "int9" in texts[0]
        assert "got Long, expected Float, Double, Half or BFloat16" in texts[1]
        if rank == 2:
            assert texts[3] == "this rank is not a member of the process group"
        else:
            assert "got a str as process group" in texts[3]


def test_without_a_group():
    kind, text = error_of(gradwire.compressed_all_reduce, torch.ones(3))
    assert (kind, text) == (
        "ValueError",
        "torch.distributed is not initialised: call init_process_group first",
    )
