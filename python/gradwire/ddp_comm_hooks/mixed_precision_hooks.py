"""The hook of DDP's mixed precision: PyTorch's own."""

from .._torch import hand_on

__all__: list[str] = []

__getattr__ = hand_on(__name__)
