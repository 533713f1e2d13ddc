"""What the PowerSGD functions are told and what they remember."""

from __future__ import annotations

import logging
import operator
from typing import Any

import torch
import torch.distributed as dist

from .. import _futures
from .._groups import checked_group, native_group
from .._native import BucketHook, check_hook_spec

# Named after the module that users know.
logger = logging.getLogger("gradwire.ddp_comm_hooks.powerSGD_hook")

# The native hook has no rate of 0: from this one on it compresses all that it can.
_LEAST_RATE = 1e-6


class PowerSGDState:
    """Options of PowerSGD and what it remembers from step to step, for one DDP.

    Arguments and defaults are those of PyTorch's class, and so are ``iter``,
    ``compression_stats()``, ``maybe_increase_iter()`` and what is logged. Ranks of
    matrices go up to 1024. The options cannot be changed later. A pickled state keeps
    what is remembered but not the process group: after unpickling it is the default
    one, unless you set another.

    ``powerSGD_hook`` and ``batched_powerSGD_hook`` remember apart from each other, so
    one state can serve a DDP with the one and then a DDP with the other.

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
    _COUNTERS = (
        "iter",
        "total_numel_before_compression",
        "total_numel_after_compression",
        "next_stats_report",
    )

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
        self._begin(
            None if process_group is None else checked_group(process_group),
            dict.fromkeys(self._COUNTERS, 0),
            {},
        )
        check_hook_spec(self._spec("powersgd"))
        logger.info(
            "PowerSGD config: %s",
            "; ".join(f"{name} = {value}" for name, value in self._given.items()),
        )

    def _begin(
        self,
        process_group: dist.ProcessGroup | None,
        counters: dict[str, int],
        remembered: dict[str, dict[str, Any]],
    ) -> None:
        # Native hooks by name; those that stand still until they are told what to
        # remember; and what they, and those that are not made yet, will remember.
        self._hooks: dict[str, BucketHook] = {}
        self._paused: dict[str, BucketHook] = {}
        self._remembered = remembered
        # Hooks that have nothing to remember begin with step `iter`.
        self._begins_later = False
        # A state of PyTorch's that shows the same counters.
        self._twin: Any = None
        self.process_group = process_group
        self._iter = counters["iter"]
        self.total_numel_before_compression = counters["total_numel_before_compression"]
        self.total_numel_after_compression = counters["total_numel_after_compression"]
        self.next_stats_report = counters["next_stats_report"]

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
                f"'{name}' cannot be changed: make another PowerSGDState"
            )
        if name == "process_group" and (
            self.__dict__.get("_hooks") or self.__dict__.get("_paused")
        ):
            raise AttributeError(
                "'process_group' cannot be changed once the hook has run: set it before"
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
        is_last = bucket.is_last()
        step = self._iter

        def start(done: Any) -> None:
            hook = self._connected(name)
            if is_last:
                done = self._counting(hook, step, done)
            hook.reduce(bucket, done)

        future = _futures.start_in_backward(start)
        if is_last:
            self._advance()
        return future

    def _connected(self, name: str) -> BucketHook:
        hook = self._hooks.get(name)
        if hook is None:
            remembered = self._remembered.pop(name, None)
            if remembered is None and (self._iter > 0 or self._begins_later):
                remembered = self._nothing()
            hook = self._paused.pop(name, None)
            if hook is None:
                hook = BucketHook(
                    native_group(self.process_group), self._spec(name), remembered
                )
            else:  # it knows its parameters
                hook.set_state(remembered)
            self._hooks[name] = hook
        return hook

    def _nothing(self) -> dict[str, Any]:
        numbers = {"step": self._iter, "turn": 0}
        return {"numbers": numbers, "shared": {}, "residuals": {}}

    def _counting(self, hook: BucketHook, step: int, done: Any) -> Any:
        """``done``, and before it what the step has sent is counted."""

        def count_and_tell(result: torch.Tensor | None, error: str | None) -> None:
            try:
                if error is None:
                    self._count(hook.report(), step)
            finally:
                done(result, error)

        return count_and_tell

    def _count(self, rows: list[dict[str, Any]], step: int) -> None:
        if not rows:
            return  # the step was averaged in full precision
        self.total_numel_before_compression += sum(row["elems"] for row in rows)
        self.total_numel_after_compression += sum(row["sent_elems"] for row in rows)
        if step >= self.next_stats_report:
            rate, before, after = self.compression_stats()
            logger.info(
                "Compression stats: iter %s, total before compression %s, total after "
                "compression %s, rate %s",
                *(step, before, after, rate),
            )
            self.next_stats_report = step + self.compression_stats_logging_frequency
        self._show()

    def _advance(self) -> None:
        self._iter += 1
        if self._iter == self.start_powerSGD_iter:
            logger.info("Start to apply PowerSGD after %s iterations.", self._iter)
        self._show()

    def _follow(self, theirs: Any) -> None:
        """Go on where ``theirs`` is, a state of PyTorch's, and show counters there."""
        self._twin = theirs
        for name in self._COUNTERS:
            setattr(self, name, getattr(theirs, name))

    def _show(self) -> None:
        if self._twin is not None:
            for name in self._COUNTERS:
                setattr(self._twin, name, getattr(self, name))

    @property
    def iter(self) -> int:
        """Steps so far; the last bucket of a step counts it.

        It can be set between two iterations, alike on all ranks: the hook then goes on
        with that step.

        Example::

            >>> state.iter
            100
        """
        return self._iter

    @iter.setter
    def iter(self, value: int) -> None:
        value = operator.index(value)
        if value < 0:
            raise ValueError(f"iter is {value}, expected 0 or more")
        for name, hook in self._hooks.items():
            self._remembered[name] = hook.state()
        for state in self._remembered.values():
            state["numbers"]["step"] = value
        self._paused.update(self._hooks)
        self._hooks.clear()
        self._iter = value
        self._begins_later = True

    def maybe_increase_iter(self, bucket: dist.GradBucket) -> None:
        """Count a step if ``bucket`` is its last one.

        For hooks of your own that average the first steps themselves. The functions
        here count the steps that they are given.

        Example::

            >>> state.maybe_increase_iter(bucket)
        """
        if bucket.is_last():
            self._begins_later = True
            self._advance()

    def compression_stats(self) -> tuple[float, int, int]:
        """Rate, elements before and elements after compression, of all steps so far.

        Steps before ``start_powerSGD_iter`` do not count.

        Example::

            >>> rate, before, after = state.compression_stats()
        """
        before = self.total_numel_before_compression
        after = self.total_numel_after_compression
        return (before / after if after else 0), before, after

    def __getstate__(self) -> dict[str, Any]:
        used = {name: hook.state() for name, hook in self._hooks.items()}
        return {
            "given": dict(self._given),
            "counters": {name: getattr(self, name) for name in self._COUNTERS},
            "remembered": {**self._remembered, **used},
        }

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._given = saved["given"]
        self._begin(
            dist.group.WORLD if dist.is_initialized() else None,
            saved["counters"],
            saved["remembered"],
        )
        self._begins_later = True
