"""PyTorch's ``torch.distributed.algorithms.ddp_comm_hooks``, run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._attach import attach
from . import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from .powerSGD_hook import PowerSGDState

__all__ = [
    "DDPCommHookType",
    "debugging_hooks",
    "default_hooks",
    "powerSGD_hook",
    "quantization_hooks",
    "register_ddp_comm_hook",
]


class _Registration(partial):
    """A member's value, called with ``model`` and ``state`` as PyTorch's are."""


def _register(
    name: str, options: str, model: DistributedDataParallel, state: Any = None
) -> None:
    if isinstance(state, PowerSGDState):
        if not name.endswith("powersgd"):
            raise TypeError(
                f"hook '{name}' got a PowerSGDState, expected a process group or None"
            )
        attach(model, state.spec(name), process_group=state.process_group)
        return
    if state is not None and not isinstance(state, dist.ProcessGroup):
        raise TypeError(
            f"got a {type(state).__name__} as state, expected a process group, "
            "a PowerSGDState or None"
        )
    attach(model, name + options, process_group=state)


class DDPCommHookType(Enum):
    """The hooks under the names that PyTorch gives them.

    Example::

        >>> DDPCommHookType.FP16_COMPRESS.value(model=ddp, state=None)
    """

    ALLREDUCE = _Registration(_register, "allreduce", "")
    FP16_COMPRESS = _Registration(_register, "fp16", "")
    BF16_COMPRESS = _Registration(_register, "bf16", "")
    QUANTIZE_PER_TENSOR = _Registration(
        _register, "int8", ":block=tensor,ef=off,scheme=affine"
    )
    QUANTIZE_PER_CHANNEL = _Registration(
        _register, "int8", ":block=512,ef=off,scheme=affine"
    )
    POWER_SGD = _Registration(_register, "powersgd", "")
    POWER_SGD_RANK2 = _Registration(_register, "powersgd", ":rank=2")
    BATCHED_POWER_SGD = _Registration(_register, "batched_powersgd", "")
    BATCHED_POWER_SGD_RANK2 = _Registration(_register, "batched_powersgd", ":rank=2")
    NOOP = _Registration(_register, "noop", "")


def register_ddp_comm_hook(
    comm_hook_type: DDPCommHookType,
    model: DistributedDataParallel,
    state: Any = None,
) -> None:
    """Attach the native hook of that name to ``model``.

    ``state`` is a process group, a :class:`PowerSGDState` for the PowerSGD hooks, or
    None. Collective.

    Example::

        >>> register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, ddp)
    """
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise TypeError(
            f"got a {type(comm_hook_type).__name__}, expected a DDPCommHookType"
        )
    comm_hook_type.value(model=model, state=state)
