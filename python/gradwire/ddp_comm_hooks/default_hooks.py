"""Averages in full precision, fp16 and bf16."""

from typing import Any, Callable

import torch
import torch.distributed as dist

from .._groups import checked_group
from ._reduce import average
from .._torch import hand_on

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]

__getattr__ = hand_on(__name__)

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def allreduce_hook(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket in full precision, as DDP does without a hook.

    Example::

        >>> ddp.register_comm_hook(None, allreduce_hook)
    """
    group = checked_group(process_group)
    buffer = bucket.buffer().div_(group.size())
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def fp16_compress_hook(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send fp16 and sum in fp32.

    Example::

        >>> ddp.register_comm_hook(None, fp16_compress_hook)
    """
    return average(process_group, bucket, "fp16")


def bf16_compress_hook(
    process_group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send bfloat16 and sum in fp32.

    Example::

        >>> ddp.register_comm_hook(None, bf16_compress_hook)
    """
    return average(process_group, bucket, "bf16")


def _compress_wrapper(dtype: torch.dtype, hook: Hook) -> Hook:
    def compress_wrapper_hook(
        hook_state: Any, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        original = bucket.buffer()
        bucket.set_buffer(original.to(dtype))

        def restore(future):
            return original.copy_(future.value())

        return hook(hook_state, bucket).then(restore)

    return compress_wrapper_hook


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """Run ``hook`` on buckets cast to fp16 and cast its result back.

    Example::

        >>> ddp.register_comm_hook(state, fp16_compress_wrapper(powerSGD_hook))
    """
    return _compress_wrapper(torch.float16, hook)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Run ``hook`` on buckets cast to bfloat16 and cast its result back.

    Example::

        >>> ddp.register_comm_hook(state, bf16_compress_wrapper(powerSGD_hook))
    """
    return _compress_wrapper(torch.bfloat16, hook)


# DDP refuses functions of this name without CUDA and NCCL, which PyTorch's function
# needs and this one does not.
bf16_compress_hook.__name__ = "gradwire_bf16_compress_hook"
