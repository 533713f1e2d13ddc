"""Local SGD after a start with global averages: PyTorch's own hook and state."""

from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)

from ._torch import hand_on

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

__getattr__ = hand_on(__name__)
