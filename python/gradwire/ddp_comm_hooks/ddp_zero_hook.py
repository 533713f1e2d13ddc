"""Optimizer steps of ZeroRedundancyOptimizer inside a hook: PyTorch's own functions."""

from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)

from .._torch import hand_on

__all__ = ["hook_with_zero_step", "hook_with_zero_step_interleaved"]

__getattr__ = hand_on(__name__)
