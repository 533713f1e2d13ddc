"""PowerSGD against its definition, computed alone in double precision."""

import pickle

import pytest
import torch
from ranks import error_of, run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from gradwire.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

ROWS, COLUMNS, RANK, STEPS = 30, 20, 2, 5
START = 2


class Matrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def gradient(rank, step):
    generator = torch.Generator().manual_seed(100 * rank + step)
    # Falling singular values, as gradients have.
    return torch.randn(ROWS, COLUMNS, generator=generator) * 0.8 ** torch.arange(COLUMNS)


def averaged(rank, world, way, feedback):
    ddp = DistributedDataParallel(Matrix())
    state = PowerSGDState(
        None,
        matrix_approximation_rank=RANK,
        start_powerSGD_iter=START,
        min_compression_rate=1,
        use_error_feedback=feedback,
    )
    if way == "attach":
        gradwire.attach(
            ddp,
            f"powersgd:rank={RANK},start={START},min_compression_rate=1,"
            f"ef={'on' if feedback else 'off'}",
        )
    elif way == "type":
        register_ddp_comm_hook(DDPCommHookType.POWER_SGD, ddp, state)
    else:
        ddp.register_comm_hook(state, powerSGD_hook)
    results = []
    for step in range(STEPS):
        ddp.zero_grad()
        ddp(gradient(rank, step)).backward()
        results.append(ddp.module.weight.grad.clone())
    return results


def remembered_by_one(rank, world):
    state = PowerSGDState(None)
    if rank == 1:
        state = pickle.loads(pickle.dumps(state))
    ddp = DistributedDataParallel(Matrix())
    ddp.register_comm_hook(state, powerSGD_hook)
    return error_of(lambda: ddp(gradient(rank, 0)).backward())


def test_a_state_that_only_one_rank_has_loaded():
    for kind, text in run(2, remembered_by_one):
        assert kind == "RuntimeError"
        assert "its state is 'none' on rank 0 but 'given' on rank 1" in text


def basis(matrix):
    return torch.linalg.svd(matrix, full_matrices=False)[0][:, :RANK]


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("way", ["attach", "type", "function"])
@pytest.mark.parametrize("world", [2, 4])
def test_follows_the_definition(world, way, feedback):
    all_results = run(world, averaged, way, feedback)
    residual = torch.zeros(ROWS, COLUMNS, dtype=torch.double)  # averaged over ranks
    right = None  # what the last Q spans
    for step in range(STEPS):
        result = all_results[0][step].double()
        for results in all_results:
            assert torch.equal(results[step], all_results[0][step])
        average = sum(gradient(rank, step).double() for rank in range(world)) / world
        if step < START:
            torch.testing.assert_close(result, average, rtol=1e-5, atol=1e-6)
            continue
        matrix = average + residual
        # The first subspace is random: whatever it is, the result is a projection.
        left = basis(result if right is None else matrix @ right)
        expected = left @ (left.T @ matrix)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert torch.linalg.matrix_rank(result, atol=1e-4) == RANK
        right = basis(expected.T)
        if feedback:
            residual = matrix - expected
