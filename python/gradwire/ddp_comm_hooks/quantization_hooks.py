"""Averages sent as 8-bit integers with an offset and a scale."""

import torch
import torch.distributed as dist

from ._reduce import average
from .._torch import hand_on

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]

__getattr__ = hand_on(__name__)


def quantization_pertensor_hook(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send 8-bit integers with one scale for each message.

    Example::

        >>> ddp.register_comm_hook(None, quantization_pertensor_hook)
    """
    return average(process_group, bucket, "int8:block=tensor,scheme=affine")


def quantization_perchannel_hook(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket, bucket_size: int = 512
) -> torch.futures.Future[torch.Tensor]:
    """Send 8-bit integers with one scale for every ``bucket_size`` elements.

    Example::

        >>> ddp.register_comm_hook(None, quantization_perchannel_hook)
    """
    return average(process_group, bucket, f"int8:block={bucket_size},scheme=affine")
