"""Shared by the hook functions."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .. import _futures
from .._groups import native_group


def average(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket, codec: str
) -> torch.futures.Future[torch.Tensor]:
    """The bucket's average over the group with messages encoded by ``codec``."""
    buffer = bucket.buffer()
    return _futures.start_in_backward(
        lambda done: native_group(process_group).compressed_all_reduce(
            buffer, codec, True, done
        )
    )
