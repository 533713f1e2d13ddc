"""Averages over all ranks at first, then within subgroups."""

import logging
import operator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as _theirs

from .. import _futures
from .._groups import checked_group, machine_group, native_group
from .._native import Group
from .._torch import hand_on

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

__getattr__ = hand_on(__name__)

logger = logging.getLogger(__name__)


class PostLocalSGDState:
    """Who averages with whom, and the number of steps so far.

    Arguments and attributes are those of PyTorch's class. ``subgroup`` is a process
    group that you made, the same kind on every rank; with None it consists of the ranks
    of this machine, which the launcher names (torchrun, mpirun and srun do), with or
    without GPUs. Without ``post_local_gradient_allreduce`` every rank keeps its own
    gradients from ``start_localSGD_iter`` on.

    A pickled state keeps options and ``iter`` but no groups. After unpickling
    ``process_group`` is the default one unless you set another; if there was a
    ``subgroup``, set it again.

    Example::

        >>> state = PostLocalSGDState(None, subgroup, start_localSGD_iter=100)
        >>> ddp.register_comm_hook(state, post_localSGD_hook)
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        subgroup: dist.ProcessGroup | None,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ):
        self._subgroup: dist.ProcessGroup | None = None
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0
        logger.info(
            "Local SGD will be started after %s iterations", self.start_localSGD_iter
        )

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Where gradients are averaged until ``start_localSGD_iter``.

        Example::

            >>> state.process_group = dist.group.WORLD
        """
        return self._process_group

    @process_group.setter
    def process_group(self, group: dist.ProcessGroup | None) -> None:
        if group is not None:
            checked_group(group)
        _check_part(self._subgroup, group)
        self._process_group = group

    @property
    def subgroup(self) -> dist.ProcessGroup | None:
        """Where they are averaged from then on; None: among the ranks of this machine.

        Example::

            >>> state.subgroup = pair
        """
        return self._subgroup

    @subgroup.setter
    def subgroup(self, group: dist.ProcessGroup | None) -> None:
        if group is not None:
            checked_group(group)
        _check_part(group, self._process_group)
        self._subgroup = group
        self._lost_subgroup = False

    @property
    def start_localSGD_iter(self) -> int:
        """Steps that average over all ranks.

        Example::

            >>> state.start_localSGD_iter
            100
        """
        return self._start

    @start_localSGD_iter.setter
    def start_localSGD_iter(self, value: int) -> None:
        self._start = _steps("start_localSGD_iter", value)

    @property
    def iter(self) -> int:
        """Steps so far, up to ``start_localSGD_iter``.

        It can be set between two iterations, alike on all ranks.

        Example::

            >>> state.iter
            100
        """
        return self._iter

    @iter.setter
    def iter(self, value: int) -> None:
        self._iter = _steps("iter", value)

    def maybe_increase_iter(self, bucket: dist.GradBucket) -> None:
        """Count a step if ``bucket`` is its last one.

        For hooks of your own that average the first steps themselves. The function
        here counts the steps that it is given.

        Example::

            >>> state.maybe_increase_iter(bucket)
        """
        if bucket.is_last():
            self.iter += 1
            if self.iter == self.start_localSGD_iter:
                logger.info("Start to apply local SGD after %s iterations.", self.iter)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "start": self._start,
            "iter": self._iter,
            "allreduce": self.post_local_gradient_allreduce,
            "had_subgroup": self._lost_subgroup or self._subgroup is not None,
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._process_group = dist.group.WORLD if dist.is_initialized() else None
        self._subgroup = None
        # Ranks of the machine would be others than those it had.
        self._lost_subgroup = saved["had_subgroup"]
        self._start = saved["start"]
        self._iter = saved["iter"]
        self.post_local_gradient_allreduce = saved["allreduce"]


def _steps(name: str, value: Any) -> int:
    try:
        steps = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} is a {type(value).__name__}, expected an int"
        ) from None
    if steps < 0:
        raise ValueError(f"{name} is {steps}, expected 0 or more")
    return steps


def _check_part(part: dist.ProcessGroup | None, whole: dist.ProcessGroup | None) -> None:
    if part is None or whole is None:
        return
    outside = set(dist.get_process_group_ranks(part)) - set(
        dist.get_process_group_ranks(whole)
    )
    if outside:
        raise ValueError(
            f"subgroup has ranks {sorted(outside)}, which are not in process_group"
        )


def _nearby(state: PostLocalSGDState) -> Group:
    if getattr(state, "_lost_subgroup", False):
        raise ValueError(
            "a PostLocalSGDState does not keep its subgroup when it is pickled: set "
            "state.subgroup"
        )
    if state.subgroup is not None:
        return native_group(state.subgroup)
    try:
        return machine_group(state.process_group)
    except ValueError as error:
        raise ValueError(f"{error}: give PostLocalSGDState a subgroup") from None


def post_localSGD_hook(
    state: PostLocalSGDState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average over ``process_group`` for some steps, then over ``subgroup``.

    What then keeps the models of different subgroups together is an averager; see
    :mod:`gradwire.model_averaging`. ``state`` can be PyTorch's, too.

    Example::

        >>> ddp.register_comm_hook(state, post_localSGD_hook)
    """
    if not isinstance(state, (PostLocalSGDState, _theirs.PostLocalSGDState)):
        raise TypeError(
            f"got a {type(state).__name__} as state of post_localSGD_hook, expected a "
            "PostLocalSGDState"
        )
    buffer = bucket.buffer()
    local = state.iter >= state.start_localSGD_iter
    if local and not state.post_local_gradient_allreduce:
        ready: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        ready.set_result(buffer)
        return ready

    def start(done: Any) -> None:
        # The subgroup connects before it is needed, so that what is wrong with it
        # shows in the first step.
        near = _nearby(state) if state.post_local_gradient_allreduce else None
        group = near if local else None
        if group is None:
            group = native_group(state.process_group)
        group.average(buffer, done)

    future = _futures.start_in_backward(start)
    if not local:
        state.maybe_increase_iter(bucket)
    return future
