"""Futures of torch for results of native calls."""

from __future__ import annotations

from typing import Callable, Optional

import torch


Call = Callable[[Callable[[Optional[torch.Tensor], Optional[str]], None]], None]


def start(call: Call) -> torch.futures.Future[torch.Tensor]:
    """A future for what ``call`` passes to the callback it is given.

    The future behaves as DDP wants it of a hook: its value is a Python object, and
    an error is one for DDP's own waiting too. What ``call`` raises is raised.
    """
    native: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def done(result: torch.Tensor | None, error: str | None) -> None:
        if error is not None:
            native.set_exception(RuntimeError(error))
        else:
            native.set_result(result)

    call(done)
    return _for_ddp(native)


def start_in_backward(call: Call) -> torch.futures.Future[torch.Tensor]:
    """The same for hooks: what ``call`` raises becomes the future's error.

    Thrown into DDP's face it would leave the Reducer unusable.
    """
    try:
        return start(call)
    except Exception as error:
        failed: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        failed.set_exception(error)
        return _for_ddp(failed)


def _for_ddp(
    future: torch.futures.Future[torch.Tensor],
) -> torch.futures.Future[torch.Tensor]:
    return future.then(lambda done: done.value())
