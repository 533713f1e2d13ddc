"""Checks that the native part was built for the installed Torch, before it loads."""

import torch

from ._build import TORCH


def check_torch(installed: str = torch.__version__, built_for: str = TORCH) -> None:
    """Raise ImportError unless both are the same release of Torch."""
    if installed.split("+")[0] != built_for.split("+")[0]:
        raise ImportError(
            f"gradwire was built for torch {built_for}, but torch {installed} is "
            "installed: build gradwire again in this environment with "
            "pip install --no-build-isolation --force-reinstall --no-deps"
        )
