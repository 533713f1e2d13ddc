"""torch futures for the results of native calls."""

from __future__ import annotations

from typing import Callable, Optional

import torch


Call = Callable[[Callable[[Optional[torch.Tensor], Optional[str]], None]], None]


def start(call: Call) -> torch.futures.Future[torch.Tensor]:
    """A future for the result that ``call`` passes to its callback.

    Raises what ``call`` raises.
    """
    native: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def done(result: torch.Tensor | None, error: str | None) -> None:
        if error is not None:
            native.set_exception(RuntimeError(error))
        else:
            native.set_result(result)

    call(done)
    return native


def start_in_backward(call: Call) -> torch.futures.Future[torch.Tensor]:
    """The same for DDP: what ``call`` raises becomes the future's error.

    An exception inside the Reducer would leave it unusable.
    """
    try:
        return for_ddp(start(call))
    except Exception as error:
        failed: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        failed.set_exception(error)
        return for_ddp(failed)


def for_ddp(
    future: torch.futures.Future[torch.Tensor],
) -> torch.futures.Future[torch.Tensor]:
    """The same future in the form that DDP expects from a hook.

    Its value is a Python object, and DDP's own wait sees its error.
    """
    return future.then(lambda done: done.value())
