"""PyTorch's ``torch.distributed.algorithms.ddp_comm_hooks``, run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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


@dataclass(frozen=True)
class _Registration:
    """A member's value, called with ``model`` and ``state`` as PyTorch's are."""

    name: str
    options: str = ""

    def __call__(self, model: DistributedDataParallel, state: Any = None) -> None:
        if isinstance(state, PowerSGDState):
            self._register_with(model, state)
            return
        if state is not None and not isinstance(state, dist.ProcessGroup):
            raise TypeError(
                f"got a {type(state).__name__} as state, expected a process group, "
                "a PowerSGDState or None"
            )
        attach(model, self.name + self.options, process_group=state)

    def _register_with(
        self, model: DistributedDataParallel, state: PowerSGDState
    ) -> None:
        # The state is the user's to look at and to pickle, so that it must be what
        # the hook works with.
        if self.name == "powersgd":
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif self.name == "batched_powersgd":
            model.register_comm_hook(state, powerSGD_hook.batched_powerSGD_hook)
        else:
            raise TypeError(
                f"hook '{self.name}' got a PowerSGDState, expected a process group or "
                "None"
            )


class DDPCommHookType(Enum):
    """The hooks under the names that PyTorch gives them.

    Example::

        >>> DDPCommHookType.FP16_COMPRESS.value(model=ddp, state=None)
    """

    ALLREDUCE = _Registration("allreduce")
    FP16_COMPRESS = _Registration("fp16")
    BF16_COMPRESS = _Registration("bf16")
    QUANTIZE_PER_TENSOR = _Registration("int8", ":block=tensor,ef=off,scheme=affine")
    QUANTIZE_PER_CHANNEL = _Registration("int8", ":block=512,ef=off,scheme=affine")
    POWER_SGD = _Registration("powersgd")
    POWER_SGD_RANK2 = _Registration("powersgd", ":rank=2")
    BATCHED_POWER_SGD = _Registration("batched_powersgd")
    BATCHED_POWER_SGD_RANK2 = _Registration("batched_powersgd", ":rank=2")
    NOOP = _Registration("noop")


def register_ddp_comm_hook(
    comm_hook_type: DDPCommHookType,
    model: DistributedDataParallel,
    state: Any = None,
) -> None:
    """Attach the native hook of that name to ``model``.

    ``state`` is a process group, a :class:`PowerSGDState` for the PowerSGD hooks, or
    None. With a PowerSGDState it is registered as a function, so that the state is
    what the hook works with. Collective.

    Example::

        >>> register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, ddp)
    """
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise TypeError(
            f"got a {type(comm_hook_type).__name__}, expected a DDPCommHookType"
        )
    comm_hook_type.value(model=model, state=state)
