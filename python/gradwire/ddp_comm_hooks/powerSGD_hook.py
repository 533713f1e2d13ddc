"""Averages sent as matrices of low rank."""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as _theirs

from . import default_hooks as default
from ._powersgd_state import PowerSGDState, logger
from .._torch import hand_on

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

__getattr__ = hand_on(__name__)

# States of PyTorch's class with ours that stand for them, by id.
_stand_ins: dict[int, tuple[Any, PowerSGDState]] = {}


def is_state(state: Any) -> bool:
    """Whether the functions here take it: a state of this class or of PyTorch's."""
    return isinstance(state, (PowerSGDState, _theirs.PowerSGDState))


def _stand_in(theirs: Any, bucket: dist.GradBucket) -> PowerSGDState:
    known = _stand_ins.get(id(theirs))
    if known is not None:
        return known[1]
    options = set(PowerSGDState._OPTIONS) - {"random_seed"}  # which it does not keep
    ours = PowerSGDState(
        theirs.process_group, **{name: getattr(theirs, name) for name in options}
    )
    ours._follow(theirs)
    # PyTorch's class has no weak references. It is not needed any longer than the
    # model it averages.
    _stand_ins[id(theirs)] = (theirs, ours)
    weakref.finalize(bucket.parameters()[0], _stand_ins.pop, id(theirs), None)
    return ours


def _reduce(
    state: Any, name: str, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    if isinstance(state, _theirs.PowerSGDState):
        state = _stand_in(state, bucket)
    if not isinstance(state, PowerSGDState):
        raise TypeError(
            f"got a {type(state).__name__} as state of {name}, expected a PowerSGDState"
        )
    return state._reduce(name, bucket)


def powerSGD_hook(
    state: PowerSGDState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send matrices of low rank, after some first steps in full precision.

    ``state`` can be a ``PowerSGDState`` of PyTorch's, too. Its options and counters
    are used; the errors it has remembered are not.

    Example::

        >>> ddp.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    """
    return _reduce(state, "powersgd", bucket)


def batched_powerSGD_hook(
    state: PowerSGDState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The same, with each bucket as one matrix.

    Example::

        >>> ddp.register_comm_hook(PowerSGDState(None), batched_powerSGD_hook)
    """
    return _reduce(state, "batched_powersgd", bucket)
