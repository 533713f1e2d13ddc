"""What averagers have in common."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from typing import Any, Iterable

import torch
import torch.distributed as dist

from .. import _native
from .._groups import checked_group, native_group
from .._parameters import numbered, parameters_of, same


def steps(name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``."""
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name} is {number}, expected {least} or more")
    return number


class ModelAverager(ABC):
    """What an optimizer calls after every step; for averagers of your own, too.

    Example::

        >>> class Never(ModelAverager):
        ...     def average_parameters(self, params):
        ...         self.step += 1
    """

    # Steps so far.
    step: int

    def __init__(self, process_group: dist.ProcessGroup | None = None):
        self.process_group = checked_group(process_group)
        self.step = 0

    @abstractmethod
    def average_parameters(self, params: Iterable[Any]) -> None:
        """Count a step, and average where it is time.

        Example::

            >>> averager.average_parameters(model.parameters())
        """


class NativeAverager(ModelAverager):
    """One whose averages are native.

    The native averager is made when parameters are known, and made again when they or
    the group are others.
    """

    _native: _native.ModelAverager | None = None
    _step = 0

    def __init__(
        self, process_group: dist.ProcessGroup | None, warmup_steps: int, average: str
    ):
        super().__init__(process_group)
        self.warmup_steps = steps("warmup_steps", warmup_steps, 0)
        self._average = _native.check_hook_spec(average)
        self._forget()

    def _forget(self) -> None:
        self._native = None
        self._tensors: list[torch.Tensor] = []
        self._group: dist.ProcessGroup | None = None

    @abstractmethod
    def _make(
        self, group: _native.Group, tensors: list[tuple[str, torch.Tensor]]
    ) -> _native.ModelAverager: ...

    @property
    def step(self) -> int:
        """Steps so far. It can be set, alike on all ranks.

        Example::

            >>> averager.step
            100
        """
        return self._step if self._native is None else self._native.step()

    @step.setter
    def step(self, value: int) -> None:
        self._step = steps("step", value, 0)
        if self._native is not None:
            self._native.set_step(self._step)

    def _averager(self, params: Iterable[Any] | None) -> _native.ModelAverager:
        """The native one for these parameters, or for those of the last call."""
        tensors = self._tensors if params is None else parameters_of(params)
        group = checked_group(self.process_group)
        known = group is self._group and same(tensors, self._tensors)
        if self._native is None or not known:
            if params is None and self._native is None:
                raise ValueError(
                    "the averager has no parameters yet: give it the model's parameters"
                )
            step = self.step
            self._forget()
            made = self._make(native_group(group), numbered(tensors))
            made.set_step(step)
            self._native, self._tensors, self._group = made, tensors, group
        return self._native

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Count a step, and average where it is time.

        ``params`` are a model's parameters or an optimizer's groups. All of them are
        averaged, whether they have a gradient or not. Collective.

        Example::

            >>> averager.average_parameters(model.parameters())
        """
        self._averager(params).average_parameters()

    def average_now(self, params: Iterable[Any] | None = None) -> None:
        """Average over all ranks, whatever time it is. Is no step. Collective.

        Example::

            >>> averager.average_now(model.parameters())  # the end of training
        """
        self._averager(params).average_now()

    def stats(self) -> dict[str, Any]:
        """Steps and averages so far, and the bytes that this rank has sent.

        Example::

            >>> averager.stats()["sent"]["payload"]
            32000
        """
        return self._averager(None).stats()

    def state_dict(self) -> dict[str, Any]:
        """Steps, this rank's parameters, and what compressed averages remember.

        Each rank has its own; ``torch.load`` with ``weights_only`` can load it.
        Collective.

        Example::

            >>> torch.save(averager.state_dict(), f"averager{rank}.pt")
        """
        return self._averager(None).state()

    def load_state_dict(
        self, state: dict[str, Any], params: Iterable[Any] | None = None
    ) -> None:
        """Go on where :meth:`state_dict` was taken, with the same bits.

        ``params`` are needed where the averager has not had any yet; they get the
        values of the state. Collective.

        Example::

            >>> averager.load_state_dict(state, model.parameters())
        """
        self._averager(params).set_state(state if isinstance(state, dict) else {})

    def save(self, folder: str | os.PathLike) -> None:
        """Write the same into ``folder``, which all ranks share. Collective.

        Example::

            >>> averager.save("checkpoint/averager")
        """
        self._averager(None).save(os.fspath(folder))

    def load(
        self, folder: str | os.PathLike, params: Iterable[Any] | None = None
    ) -> None:
        """Go on where :meth:`save` was called. Collective.

        In a world of another size all ranks take the first one's parameters.

        Example::

            >>> averager.load("checkpoint/averager", model.parameters())
        """
        self._averager(params).load(os.fspath(folder))

    def __getstate__(self) -> dict[str, Any]:
        kept = {**self.__dict__, "_step": self.step}
        for name in ("process_group", "_native", "_tensors", "_group"):
            kept.pop(name, None)
        return kept

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved)
        self.process_group = dist.group.WORLD if dist.is_initialized() else None
        self._forget()
