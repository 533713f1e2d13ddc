"""Collectives with compressed messages."""

from __future__ import annotations

import atexit
import threading
from typing import Literal, overload

import torch
import torch.distributed as dist

from . import _futures
from ._groups import native_group

_under_way: set[torch.futures.Future[torch.Tensor]] = set()


@atexit.register
def _wait_for_all() -> None:
    # Before groups are taken apart: other ranks count on what is under way.
    for future in list(_under_way):
        try:
            wait(future)
        except RuntimeError:
            pass  # whoever wanted to know has asked


@overload
def compressed_all_reduce(
    tensor: torch.Tensor,
    spec: str = "int8",
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = False,
    async_op: Literal[False] = False,
) -> None: ...


@overload
def compressed_all_reduce(
    tensor: torch.Tensor,
    spec: str = "int8",
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = False,
    async_op: Literal[True],
) -> torch.futures.Future[torch.Tensor]: ...


def compressed_all_reduce(
    tensor: torch.Tensor,
    spec: str = "int8",
    group: dist.ProcessGroup | None = None,
    *,
    average: bool = False,
    async_op: bool = False,
) -> torch.futures.Future[torch.Tensor] | None:
    """All-reduce ``tensor`` in place with messages encoded by codec ``spec``.

    About 2(W-1)/W times the encoded size is sent, whatever the number W of ranks,
    and all ranks end with the same bits. The tensor is dense, on the CPU, of
    float32, float64, float16 or bfloat16. With ``async_op`` a future is returned
    at once. Collective; the first call on a group connects.

    Example::

        >>> gradwire.compressed_all_reduce(update, "int8:block=256", average=True)
    """
    native = native_group(group)
    future = _futures.start(
        lambda done: native.compressed_all_reduce(tensor, spec, average, done)
    )
    if async_op:
        future = _futures.for_ddp(future)
        _under_way.add(future)
        future.add_done_callback(lambda _: _under_way.discard(future))
        return future
    wait(future)
    return None


def wait(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
    """The future's value; Ctrl-C is heard while waiting."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(0.05):
        pass
    return future.value()
