"""An optimizer that averages the model after its steps."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import torch

from .._torch import hand_on

__all__ = ["PostLocalSGDOptimizer"]

__getattr__ = hand_on(__name__)


def _check_start(hook_state: Any, averager: Any) -> None:
    start = getattr(hook_state, "start_localSGD_iter", None)
    if start is None:
        raise TypeError(
            f"got a {type(hook_state).__name__} as hook_state, expected a "
            "PostLocalSGDState"
        )
    warmup = getattr(averager, "warmup_steps", start)
    if warmup != start:
        raise ValueError(
            f"the hook goes local after {start} steps but the averager begins after "
            f"{warmup}, expected the same number"
        )


class PostLocalSGDOptimizer(torch.optim.Optimizer):
    """Steps ``optim``, then lets ``averager`` average the model where it is time.

    ``averager`` is one of :mod:`gradwire.model_averaging`, of PyTorch's, or your own.
    ``hook_state`` is the ``PostLocalSGDState`` of the DDP: if it is given, its start
    must be the averager's warm-up, for in between nobody would average anything.

    Example::

        >>> sgd = torch.optim.SGD(model.parameters(), 0.1)
        >>> averager = PeriodicModelAverager(period=8, warmup_steps=100)
        >>> optimizer = PostLocalSGDOptimizer(sgd, averager, hook_state=state)
    """

    def __init__(
        self, optim: torch.optim.Optimizer, averager: Any, *, hook_state: Any = None
    ):
        if not isinstance(optim, torch.optim.Optimizer):
            raise TypeError(
                f"got a {type(optim).__name__} as optim, expected a torch.optim.Optimizer"
            )
        if not callable(getattr(averager, "average_parameters", None)):
            raise TypeError(
                f"got a {type(averager).__name__} as averager, expected a ModelAverager"
            )
        if hook_state is not None:
            _check_start(hook_state, averager)
        # As in PyTorch's class, nothing of Optimizer's own is set up: it is all
        # that of `optim`.
        self.optim = optim
        self.averager = averager

    # Not attributes, as `optim` gets others when it is loaded.
    @property
    def state(self) -> Any:
        """What ``optim`` remembers.

        Example::

            >>> optimizer.state[parameter]["momentum_buffer"]
        """
        return self.optim.state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of ``optim``.

        Example::

            >>> optimizer.param_groups[0]["lr"] = 0.01
        """
        return self.optim.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of ``optim``, which some schedulers read.

        Example::

            >>> optimizer.defaults["lr"]
            0.1
        """
        return self.optim.defaults

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, Any]:
        """That of ``optim``, with the averager's steps as ``"step"``.

        What a compressed average remembers is ``averager.state_dict()``.

        Example::

            >>> torch.save(optimizer.state_dict(), f"optimizer{rank}.pt")
        """
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Without a ``"step"`` the averager begins with its warm-up, and a warning says so.

        Example::

            >>> optimizer.load_state_dict(torch.load(f"optimizer{rank}.pt"))
        """
        self.optim.load_state_dict(state_dict)
        if "step" not in state_dict:
            warnings.warn(
                "the state has no 'step': the averager begins with its warm-up again",
                stacklevel=2,
            )
        self.averager.step = state_dict.get("step", 0)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step ``optim``, then average where it is time. Collective.

        Returns what the closure returns, if there is one.

        Example::

            >>> optimizer.step()
        """
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        self.averager.average_parameters(params=self.param_groups)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients.

        Example::

            >>> optimizer.zero_grad()
        """
        self.optim.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to ``optim``. On all ranks, because they are averaged too.

        Example::

            >>> optimizer.add_param_group({"params": head.parameters()})
        """
        self.optim.add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {"optim": self.optim, "averager": self.averager}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved)
