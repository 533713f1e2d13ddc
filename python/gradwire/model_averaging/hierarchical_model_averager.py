"""Averages within blocks of ranks, each size with a period of its own."""

from __future__ import annotations

import logging
import warnings
from typing import Mapping

import torch
import torch.distributed as dist

from .. import _native
from .._torch import hand_on
from ._averager import NativeAverager, steps

__all__ = ["HierarchicalModelAverager"]

__getattr__ = hand_on(__name__)

logger = logging.getLogger(__name__)


def _checked_periods(periods: Mapping[int, int], world: int) -> dict[int, int]:
    if not periods:
        raise ValueError("period_group_size_dict is empty, expected at least one period")
    checked: dict[int, int] = {}
    period_before, ranks_before = 0, 0
    for period, ranks in periods.items():
        steps("a period of period_group_size_dict", period, period_before + 1)
        steps("a size of period_group_size_dict", ranks, 1)
        if ranks == ranks_before and period % period_before == 0:
            continue  # the same average, whenever it is due
        if ranks_before and (ranks <= ranks_before or ranks % ranks_before):
            raise ValueError(
                f"period_group_size_dict has {ranks} ranks for period {period}, "
                f"expected a larger multiple of {ranks_before}"
            )
        checked[period] = ranks
        period_before, ranks_before = period, ranks
    if ranks_before != world:
        raise ValueError(
            f"period_group_size_dict ends with {ranks_before} ranks, expected all {world} "
            "of the process group"
        )
    return checked


class HierarchicalModelAverager(NativeAverager):
    """Averages within blocks of ranks: ``{4: 8, 16: 16}`` is every 4 steps within 8.

    Of several periods that divide the number of the step the longest one counts, once
    ``warmup_steps`` are over. Periods and sizes ascend, each size divides the next, and
    the last one is all ranks. ``average`` and pickling as in ``PeriodicModelAverager``.

    Example::

        >>> averager = HierarchicalModelAverager({4: 8, 16: 16}, warmup_steps=100)
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int] | None = None,
        warmup_steps: int = 0,
        process_group: dist.ProcessGroup | None = None,
        *,
        average: str = "allreduce",
    ):
        super().__init__(process_group, warmup_steps, average)
        self._periods = _checked_periods(
            period_group_size_dict or {}, self.process_group.size()
        )
        if max(self._periods) == 1:
            warnings.warn(
                "the longest period is 1: averaging models in every step sends as much "
                "as averaging gradients",
                stacklevel=2,
            )
        for period, ranks in self._periods.items():
            logger.info("Models of %s ranks are averaged every %s steps.", ranks, period)

    def _make(
        self, group: _native.Group, tensors: list[tuple[str, torch.Tensor]]
    ) -> _native.ModelAverager:
        return _native.ModelAverager.hierarchical(
            group, tensors, self._periods, self.warmup_steps, self._average
        )
