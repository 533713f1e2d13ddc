"""Averages of models at regular steps."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from .. import _native
from .._torch import hand_on
from ._averager import ModelAverager, NativeAverager, steps

__all__ = ["ModelAverager", "PeriodicModelAverager"]

__getattr__ = hand_on(__name__)


class PeriodicModelAverager(NativeAverager):
    """Averages a model over all ranks every ``period`` steps after ``warmup_steps``.

    ``average`` is the spec of the hook by which averages travel. One that compresses,
    such as ``"int8"``, sends what has changed since the last average, with the hook's
    error feedback. A pickled averager keeps options and ``step`` but not the group:
    after unpickling it is the default one, unless you set another.

    Example::

        >>> averager = PeriodicModelAverager(period=8, warmup_steps=100)
        >>> for batch in batches:
        ...     train(batch)
        ...     averager.average_parameters(model.parameters())
    """

    def __init__(
        self,
        period: int,
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
        *,
        average: str = "allreduce",
    ):
        super().__init__(process_group, warmup_steps, average)
        self.period = steps("period", period, 1)
        if self.period == 1:
            warnings.warn(
                "period is 1: averaging models in every step sends as much as "
                "averaging gradients",
                stacklevel=2,
            )

    def _make(
        self, group: _native.Group, tensors: list[tuple[str, torch.Tensor]]
    ) -> _native.ModelAverager:
        return _native.ModelAverager.periodic(
            group, tensors, self.period, self.warmup_steps, self._average
        )
