"""Futures of torch for results of native calls."""

from __future__ import annotations

from typing import Callable

import torch


def start(
    call: Callable[[Callable[[torch.Tensor | None, str | None], None]], None],
) -> torch.futures.Future[torch.Tensor]:
    """A future for what ``call`` passes to the callback it is given.

    The future behaves as DDP wants it of a hook: its value is a Python object, and
    an error is one for DDP's own waiting too. What ``call`` raises becomes the
    future's error: thrown into DDP's face it would leave the Reducer unusable.
    """
    native: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def done(result: torch.Tensor | None, error: str | None) -> None:
        if error is not None:
            native.set_exception(RuntimeError(error))
        else:
            native.set_result(result)

    try:
        call(done)
    except Exception as error:
        native.set_exception(error)
    return native.then(lambda future: future.value())
