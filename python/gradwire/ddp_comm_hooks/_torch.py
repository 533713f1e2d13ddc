"""Names of PyTorch's package that gradwire has no version of its own for."""

from __future__ import annotations

import importlib
from typing import Any, Callable

_PACKAGE = "torch.distributed.algorithms.ddp_comm_hooks"


def hand_on(module: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module``: what it lacks, PyTorch's module has.

    So every import that works with PyTorch's module works with ours.
    """
    theirs = f"{_PACKAGE}.{module.rpartition('.')[2]}"

    def find(name: str) -> Any:
        # The import machinery asks modules for names such as __path__.
        if not name.startswith("__"):
            try:
                return getattr(importlib.import_module(theirs), name)
            except AttributeError:
                pass
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return find
