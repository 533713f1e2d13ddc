"""PyTorch's ``torch.distributed.algorithms.ddp_comm_hooks``, run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

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
        function = _WITH_STATE.get(self.name)
        if function is not None and isinstance(state, PowerSGDState):
            # The state is the user's to look at and to pickle, so that it must be
            # what the hook works with.
            model.register_comm_hook(state, function)
        else:
            # All ranks are told of a state that is none.
            attach(model, self.name + self.options, process_group=state)


_WITH_STATE = {
    "powersgd": powerSGD_hook.powerSGD_hook,
    "batched_powersgd": powerSGD_hook.batched_powerSGD_hook,
}


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
