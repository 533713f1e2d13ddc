"""Gradients as matrices of low rank."""

from typing import Any

import torch
import torch.distributed as dist

from .. import _futures
from .._groups import checked_group, native_group
from .._native import BucketHook, check_hook_spec

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

# Below it all that can be compressed is.
_LEAST_RATE = 1e-6


class PowerSGDState:
    """Options of PowerSGD and what it remembers from step to step, of one DDP.

    Arguments and defaults are those of PyTorch's class; ranks of matrices go up to
    1024. Options are fixed once the state is made. Pickled, it keeps what is
    remembered and leaves out the process group, which is the default one afterwards
    unless it is set.

    Example::

        >>> state = PowerSGDState(None, matrix_approximation_rank=2)
        >>> ddp.register_comm_hook(state, powerSGD_hook)
    """

    _OPTIONS = {
        "matrix_approximation_rank": "rank",
        "start_powerSGD_iter": "start",
        "min_compression_rate": "min_compression_rate",
        "use_error_feedback": "ef",
        "warm_start": "warm_start",
        "orthogonalization_epsilon": "epsilon",
        "random_seed": "seed",
        "compression_stats_logging_frequency": "stats",
        "batch_tensors_with_same_shape": "batch",
    }

    def __init__(
        self,
        process_group: dist.ProcessGroup | None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ):
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                f"start_powerSGD_iter is {start_powerSGD_iter}, expected more than 1 "
                "with use_error_feedback or warm_start: buckets change after the first "
                "iteration of a DDP"
            )
        given = locals()
        self._given = {name: given[name] for name in self._OPTIONS}
        self._given["compression_stats_logging_frequency"] = max(
            1, compression_stats_logging_frequency
        )
        self.process_group = (
            None if process_group is None else checked_group(process_group)
        )
        self._iter = 0
        self._name: str | None = None
        self._hook: BucketHook | None = None
        self._remembered: dict[str, Any] | None = None
        check_hook_spec(self._spec("powersgd"))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_given"][name]
        except KeyError:
            raise AttributeError(
                f"'PowerSGDState' object has no attribute '{name}'"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OPTIONS:
            raise AttributeError(
                f"'{name}' is fixed once the state is made: make another PowerSGDState"
            )
        if name == "process_group" and self.__dict__.get("_hook") is not None:
            raise AttributeError(
                "'process_group' is fixed once the hook has run: set it before"
            )
        super().__setattr__(name, value)

    def _spec(self, name: str) -> str:
        words = []
        for argument, option in self._OPTIONS.items():
            if option == "batch" and name == "batched_powersgd":
                continue
            value = self._given[argument]
            if option in ("ef", "warm_start", "batch"):
                value = "on" if value else "off"
            elif option == "min_compression_rate":
                value = max(value, _LEAST_RATE)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            words.append(f"{option}={value}")
        return f"{name}:{','.join(words)}"

    def _reduce(
        self, name: str, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            self._iter += 1
        return _futures.start_in_backward(
            lambda done: self._connected(name).reduce(bucket, done)
        )

    def _connected(self, name: str) -> BucketHook:
        if self._hook is None:
            self._hook = BucketHook(
                native_group(self.process_group), self._spec(name), self._remembered
            )
            self._remembered = None
            self._name = name
        elif self._name != name:
            raise ValueError(
                f"this PowerSGDState serves hook '{self._name}', got '{name}': "
                "make another one"
            )
        return self._hook

    def _state(self) -> dict[str, Any]:
        if self._hook is not None:
            return self._hook.state()
        return self._remembered or {
            "numbers": {"step": 0, "turn": 0},
            "shared": {},
            "residuals": {},
        }

    @property
    def iter(self) -> int:
        """Steps so far, the one under way counted from its last bucket on.

        Example::

            >>> state.iter
            100
        """
        return self._iter

    def compression_stats(self) -> tuple[float, int, int]:
        """Rate, elements before and elements after compression, of the last step.

        Example::

            >>> rate, before, after = state.compression_stats()
        """
        rows = self._hook.report() if self._hook is not None else []
        before = sum(row["elems"] for row in rows)
        after = sum(row["sent_elems"] for row in rows)
        return (before / after if after else 0), before, after

    def __getstate__(self) -> dict[str, Any]:
        return {"given": dict(self._given), "state": self._state()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._given = saved["given"]
        self._remembered = saved["state"]
        self._iter = self._remembered["numbers"]["step"]
        self._name = None
        self._hook = None
        self.process_group = dist.group.WORLD if dist.is_initialized() else None


def powerSGD_hook(
    state: PowerSGDState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send matrices of low rank after a start in full precision.

    Example::

        >>> ddp.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    """
    return state._reduce("powersgd", bucket)


def batched_powerSGD_hook(
    state: PowerSGDState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The same with each bucket as one matrix.

    Example::

        >>> ddp.register_comm_hook(PowerSGDState(None), batched_powerSGD_hook)
    """
    return state._reduce("batched_powersgd", bucket)
