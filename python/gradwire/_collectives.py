"""Collectives with compressed messages."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Literal, overload

import torch
import torch.distributed as dist

from . import _futures
from . import _native
from ._groups import native_group

_under_way: set[torch.futures.Future[torch.Tensor]] = set()


# A forked child has none of the threads that would complete them.
os.register_at_fork(after_in_child=_under_way.clear)


@atexit.register
def _wait_for_all() -> None:
    # Other ranks wait for what is under way, so it ends before the groups do.
    for future in list(_under_way):
        try:
            wait(future)
        except RuntimeError:
            pass  # a caller who waits has seen it


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

    Each of W ranks sends about 2(W-1)/W times the encoded size, and all ranks end with
    the same bits. The tensor must be dense, on the CPU, and of float32, float64,
    float16 or bfloat16. With ``async_op`` the call returns a future at once.
    Collective; the first call on a group connects.

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
    """The future's value. Ctrl-C interrupts the wait.

    Raises in a callback on one of gradwire's futures, which would wait for its own thread.
    """
    if not future.done():
        _native.check_wait()
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(0.05):
        pass
    return future.value()
