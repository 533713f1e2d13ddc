"""An outer optimizer for ranks that train by themselves."""

from __future__ import annotations

import os
from typing import Any, Iterable

import torch
import torch.distributed as dist

from .. import _native
from .._groups import native_group
from .._parameters import numbered, parameters_of

__all__ = ["DiLoCo"]


class DiLoCo:
    """Moves a model by the averaged change of ``period`` steps on every rank.

    Ranks step an inner optimizer by themselves and average no gradients. Every
    ``period`` steps the differences to what all had are averaged by the hook
    ``average``, and an SGD with Nesterov momentum (``outer_lr``, ``outer_momentum``)
    takes the average for a gradient. With several ``fragments`` parts of the model go
    at different steps, and with a ``delay`` inner steps go on while a part is on its
    way; ``mix`` is the share of its own value that a parameter keeps then.

    ``parameters`` are a model's parameters or an optimizer's groups. All ranks begin
    with the first rank's. Collective.

    Example::

        >>> diloco = DiLoCo(model.parameters(), period=32, average="int8")
        >>> for batch in batches:
        ...     train(batch)
        ...     diloco.step()
        >>> diloco.finish()
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        period: int = 32,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        average: str = "allreduce",
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
        process_group: dist.ProcessGroup | None = None,
    ):
        self._native = _native.DiLoCo(
            native_group(process_group),
            numbered(parameters_of(parameters)),
            period,
            outer_lr,
            outer_momentum,
            average,
            fragments,
            delay,
            mix,
        )

    def step(self) -> None:
        """After every step of the inner optimizer. Collective.

        Example::

            >>> diloco.step()
        """
        self._native.step()

    def finish(self) -> None:
        """Wait for what is on its way, and average what ranks have apart. Collective.

        Training may go on afterwards.

        Example::

            >>> diloco.finish()
        """
        self._native.finish()

    def anchor(self) -> list[torch.Tensor]:
        """What all ranks have alike, by parameter: to look at, or to evaluate.

        Example::

            >>> for parameter, shared in zip(model.parameters(), diloco.anchor()):
            ...     parameter.data.copy_(shared)
        """
        shared = self._native.anchor()
        return [shared[str(number)] for number in range(len(shared))]

    def stats(self) -> dict[str, Any]:
        """Steps and outer steps so far, and the bytes that this rank has sent.

        Example::

            >>> diloco.stats()["outer_steps"]
            3
        """
        return self._native.stats()

    def state_dict(self) -> dict[str, Any]:
        """Everything to go on with the same bits, but for the inner optimizer.

        Each rank has its own; ``torch.load`` with ``weights_only`` can load it.
        Collective.

        Example::

            >>> torch.save(diloco.state_dict(), f"diloco{rank}.pt")
        """
        return self._native.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken on this rank. Collective.

        Example::

            >>> diloco.load_state_dict(torch.load(f"diloco{rank}.pt"))
        """
        self._native.set_state(state if isinstance(state, dict) else {})

    def save(self, folder: str | os.PathLike) -> None:
        """Write the same into ``folder``, which all ranks share. Collective.

        Example::

            >>> diloco.save("checkpoint/diloco")
        """
        self._native.save(os.fspath(folder))

    def load(self, folder: str | os.PathLike) -> None:
        """Go on where :meth:`save` was called. Collective.

        In a world of another size ranks share anchor and momentum, and take the first
        rank's parameters.

        Example::

            >>> diloco.load("checkpoint/diloco")
        """
        self._native.load(os.fspath(folder))
