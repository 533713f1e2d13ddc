"""PyTorch's ``torch.distributed.algorithms.ddp_comm_hooks``, run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
"""

from __future__ import annotations

import enum
from functools import partial
from typing import Any, Callable

from torch.nn.parallel import DistributedDataParallel

from .._attach import attach
from .._native import torch_hook_specs
from . import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from .powerSGD_hook import is_state

# PyTorch's short names of its modules.
debugging = debugging_hooks
default = default_hooks
optimizer_overlap = optimizer_overlap_hooks
powerSGD = powerSGD_hook
quantization = quantization_hooks

__all__ = [
    "DDPCommHookType",
    "debugging_hooks",
    "default_hooks",
    "powerSGD_hook",
    "quantization_hooks",
    "register_ddp_comm_hook",
]

# The spec of the native hook that does the same as a hook function.
_SPECS: dict[Callable[..., Any], str] = {
    hook: torch_hook_specs()[name]
    for name, hook in {
        "ALLREDUCE": default_hooks.allreduce_hook,
        "FP16_COMPRESS": default_hooks.fp16_compress_hook,
        "BF16_COMPRESS": default_hooks.bf16_compress_hook,
        "QUANTIZE_PER_TENSOR": quantization_hooks.quantization_pertensor_hook,
        "QUANTIZE_PER_CHANNEL": quantization_hooks.quantization_perchannel_hook,
        "POWER_SGD": powerSGD_hook.powerSGD_hook,
        "BATCHED_POWER_SGD": powerSGD_hook.batched_powerSGD_hook,
        "NOOP": debugging_hooks.noop_hook,
    }.items()
}


def _ddp_comm_hook_wrapper(
    comm_hook: Callable[..., Any], model: DistributedDataParallel, state: Any = None
) -> None:
    if comm_hook in _SPECS:
        # All ranks are told of a state that is no process group.
        attach(model, _SPECS[comm_hook], process_group=state)
    else:
        model.register_comm_hook(state, comm_hook)


def _powerSGD_comm_hook_wrapper(
    comm_hook: Callable[..., Any],
    model: DistributedDataParallel,
    state: Any = None,
    matrix_approximation_rank: int = 1,
    start_powerSGD_iter: int = 1_000,
) -> None:
    if is_state(state) or comm_hook not in _SPECS:
        # The user looks at the state and pickles it, so it must be what the hook
        # works with.
        if not is_state(state):
            state = powerSGD_hook.PowerSGDState(
                state, matrix_approximation_rank, start_powerSGD_iter
            )
        model.register_comm_hook(state, comm_hook)
        return
    options = []
    if matrix_approximation_rank != 1:
        options.append(f"rank={matrix_approximation_rank}")
    if start_powerSGD_iter != 1_000:
        options.append(f"start={start_powerSGD_iter}")
    spec = ":".join(filter(None, [_SPECS[comm_hook], ",".join(options)]))
    attach(model, spec, process_group=state)


# From Python 3.13 on an enum takes partial functions for methods unless told.
_member = getattr(enum, "member", lambda value: value)


def _plain(comm_hook: Callable[..., Any]) -> Any:
    return _member(partial(_ddp_comm_hook_wrapper, comm_hook=comm_hook))


def _power(comm_hook: Callable[..., Any], rank: int) -> Any:
    return _member(
        partial(
            _powerSGD_comm_hook_wrapper,
            comm_hook=comm_hook,
            matrix_approximation_rank=rank,
        )
    )


class DDPCommHookType(enum.Enum):
    """The hooks under the names that PyTorch gives them.

    As in PyTorch, a member's value is a partial function of ``model`` and ``state``
    that registers the hook, and its keyword ``comm_hook`` is the hook's function.

    Example::

        >>> DDPCommHookType.FP16_COMPRESS.value(model=ddp, state=None)
    """

    ALLREDUCE = _plain(default_hooks.allreduce_hook)
    FP16_COMPRESS = _plain(default_hooks.fp16_compress_hook)
    BF16_COMPRESS = _plain(default_hooks.bf16_compress_hook)
    QUANTIZE_PER_TENSOR = _plain(quantization_hooks.quantization_pertensor_hook)
    QUANTIZE_PER_CHANNEL = _plain(quantization_hooks.quantization_perchannel_hook)
    POWER_SGD = _power(powerSGD_hook.powerSGD_hook, 1)
    POWER_SGD_RANK2 = _power(powerSGD_hook.powerSGD_hook, 2)
    BATCHED_POWER_SGD = _power(powerSGD_hook.batched_powerSGD_hook, 1)
    BATCHED_POWER_SGD_RANK2 = _power(powerSGD_hook.batched_powerSGD_hook, 2)
    NOOP = _plain(debugging_hooks.noop_hook)


def register_ddp_comm_hook(
    comm_hook_type: DDPCommHookType,
    model: DistributedDataParallel,
    state: Any = None,
) -> None:
    """Attach the native hook of that name to ``model``.

    ``state`` is a process group or None; for the PowerSGD hooks it can be a
    :class:`PowerSGDState`, which is then registered together with the hook's
    function. Collective.

    Example::

        >>> register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, ddp)
    """
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise TypeError(
            f"got a {type(comm_hook_type).__name__}, expected a DDPCommHookType"
        )
    comm_hook_type.value(model=model, state=state)
