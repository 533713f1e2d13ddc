"""Optimizer steps inside a hook: PyTorch's own functions."""

from .._torch import hand_on

__all__: list[str] = []

__getattr__ = hand_on(__name__)
