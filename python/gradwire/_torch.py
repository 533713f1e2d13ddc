"""Names of PyTorch's packages that gradwire has no version of its own for."""

from __future__ import annotations

import importlib
from typing import Any, Callable

# PyTorch's package for each of ours.
_PACKAGES = {
    "gradwire.ddp_comm_hooks": "torch.distributed.algorithms.ddp_comm_hooks",
    "gradwire.model_averaging": "torch.distributed.algorithms.model_averaging",
    "gradwire.optim": "torch.distributed.optim",
}


def _theirs(module: str) -> str:
    if module in _PACKAGES:
        return _PACKAGES[module]
    package, _, name = module.rpartition(".")
    return f"{_PACKAGES[package]}.{name}"


def hand_on(module: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module``: what it lacks, PyTorch's module has.

    So every import that works with PyTorch's module works with ours.
    """
    theirs = _theirs(module)

    def find(name: str) -> Any:
        # The import machinery asks modules for names such as __path__.
        if not name.startswith("__"):
            try:
                return getattr(importlib.import_module(theirs), name)
            except AttributeError:
                pass
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return find
