"""Hooks on PyTorch's DistributedDataParallel."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._groups import checked_group
from ._native import Attachment, check_hook_spec

# Prefix of our hooks' names in DDP's log.
_LOG_NAME = "gradwire "

_attached: weakref.WeakKeyDictionary[DistributedDataParallel, Attachment] = (
    weakref.WeakKeyDictionary()
)


@atexit.register
def _stop_all() -> None:
    for attachment in list(_attached.values()):
        attachment.stop()


def _checked_ddp(ddp: Any) -> DistributedDataParallel:
    # torch.compile wraps a DDP in a module that has it as _orig_mod.
    inner = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(
            f"got a {type(ddp).__name__}, expected a "
            "torch.nn.parallel.DistributedDataParallel"
        )
    return inner


def _attachment(ddp: Any) -> Attachment:
    attachment = _attached.get(_checked_ddp(ddp))
    if attachment is None:
        raise ValueError(
            "this DDP has no gradwire hook: call gradwire.attach(ddp, hook) first "
            "(a DDP that was unpickled or copied has lost its hook)"
        )
    return attachment


def _outside_of_join(ddp: DistributedDataParallel, call: str) -> None:
    # Ranks that have run out of input could not take part.
    if ddp._join_config.enable:
        raise ValueError(f"{call} was called inside join(), expected it outside")


def _collective(ddp: Any, call: str) -> Attachment:
    attachment = _attachment(ddp)
    _outside_of_join(_checked_ddp(ddp), call)
    return attachment


def _check_attachable(ddp: DistributedDataParallel) -> None:
    """Raises ValueError if this DDP cannot have a gradwire hook."""
    # First, because such a DDP lacks attributes that the other checks read.
    if ddp._delay_all_reduce_all_params:
        raise ValueError(
            "attach refuses a DDP whose parameters are all delayed: it has no buckets"
        )
    if ddp.skip_all_reduce_unused_params:
        raise ValueError(
            "attach refuses skip_all_reduce_unused_params, under which a hook does not "
            "see all buckets"
        )
    if ddp.mixed_precision is not None:
        raise ValueError(
            "attach refuses a DDP with mixed_precision, which registers a hook of its "
            "own: use torch.autocast and a hook such as bf16"
        )
    if ddp._use_python_reducer:
        raise ValueError(
            "attach refuses a DDP with the Python reducer "
            "(torch._dynamo.config.optimize_ddp), which has no native buckets"
        )
    if any(hasattr(p, "_in_backward_optimizers") for p in ddp._module_parameters):
        raise ValueError(
            "attach refuses parameters with in-backward optimizers "
            "(_apply_optimizer_in_backward), which would step before the average is there"
        )
    name = _other_hook(ddp)
    if name:
        raise ValueError(
            f"attach refuses a DDP that has hook '{name}' registered: a Reducer takes "
            "only one hook"
        )


def _other_hook(ddp: DistributedDataParallel) -> str:
    attachment = _attached.get(ddp)
    if attachment is not None and attachment.is_registered():
        return ""
    # The log also names PyTorch's built-in hooks, and it belongs to this Reducer.
    # A copy of a DDP has its _comm_hooks but not its hook.
    name = ddp._get_ddp_logging_data().get("comm_hook", "")
    return "" if name.startswith(_LOG_NAME) else name


def _parameters(ddp: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    return [
        (name.replace("_orig_mod.", ""), parameter)
        for name, parameter in ddp.module.named_parameters()
    ]


def hooks() -> list[dict[str, Any]]:
    """The hooks that :func:`attach` knows.

    Each has its ``name``, ``summary`` and ``options``. ``averages``: ranks end with the
    same average, otherwise each keeps its own gradients. ``tolerance`` bounds the error
    of the average, relative to the largest element of any rank's gradient; it is
    infinite where the error depends on the gradients. With the options in ``trial`` the
    first step does what later steps do.

    Example::

        >>> [hook["name"] for hook in gradwire.hooks()]
        ['allreduce', 'fp16', 'bf16', ...]
    """
    return _native.hooks()


def _choice(
    ddp: DistributedDataParallel, hook: Any, process_group: Any
) -> tuple[str, dist.ProcessGroup | None]:
    """The hook and its group, None for the DDP's. Raises if ``ddp`` cannot have them."""
    if not isinstance(hook, str):
        raise TypeError(f"got a {type(hook).__name__} as hook, expected a spec string")
    checked_group(process_group)
    _check_attachable(ddp)
    return hook, None if process_group is ddp.process_group else process_group


def attach(
    ddp: DistributedDataParallel,
    hook: str = "int8",
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Average the gradients of ``ddp`` with the native hook that ``hook`` names.

    ``hook`` is a spec such as ``"int8"``, ``"powersgd:rank=4"`` or
    ``"bf16(powersgd)"``; :func:`hooks` lists the hooks. Call it again between two
    iterations to use another hook. ``process_group`` is the group that the hook
    communicates in, by default the DDP's.

    Collective. All ranks raise ValueError if they do not agree on the hook or the
    model, or if one of them cannot attach, and RuntimeError if a rank is lost.

    Example::

        >>> ddp = DistributedDataParallel(model)
        >>> gradwire.attach(ddp, "int8")
    """
    ddp = _checked_ddp(ddp)
    _outside_of_join(ddp, "attach")
    # All ranks are told what this raises.
    choose = functools.partial(_choice, ddp, hook, process_group)
    attachment = _attached.get(ddp)
    if attachment is not None:
        attachment.set_hook(choose)
    else:
        _attached[ddp] = Attachment(
            getattr(ddp, "reducer", None), ddp.process_group, _parameters(ddp), choose
        )
    ddp.logger._set_comm_hook_name(_LOG_NAME + check_hook_spec(hook))


def stats(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What the hook of ``ddp`` has done so far on this rank.

    ``sent`` counts the bytes handed to the transport, as payload and metadata;
    ``last`` has those of the last step and of each of its buckets. ``plain_bytes`` is
    what a step would send without a hook, and ``ratio`` divides it by the bytes of the
    last step. ``last`` and ``mean`` have times of a step: ``communication_ms`` from the
    first bucket to the last average, and ``exposed_ms`` the part of it after the last
    bucket was ready. The step would be that much shorter if communication were free.

    For plain averaging (``"allreduce"``, ``"none"``) bytes are computed:
    ``plain_bytes`` for each forward whose gradients are averaged.

    Example::

        >>> gradwire.stats(ddp)["ratio"]
        3.94
    """
    return _attachment(ddp).stats()


def save_hook_state(ddp: DistributedDataParallel, folder: str | os.PathLike) -> None:
    """Write what the hook remembers (residuals, subspaces, steps) into ``folder``.

    Writes one file for each rank; all ranks must share the folder. Collective: if one
    rank fails, all ranks raise.

    Example::

        >>> gradwire.save_hook_state(ddp, "checkpoint/hook")
    """
    _collective(ddp, "save_hook_state").save_hook_state(os.fspath(folder))


def load_hook_state(
    ddp: DistributedDataParallel, folder: str | os.PathLike, *, strict: bool = False
) -> None:
    """Continue from what :func:`save_hook_state` has written.

    The same hook must be attached. If the number of ranks is another one, residuals are
    distributed among the ranks again; with ``strict`` this is an error. Collective.

    Example::

        >>> gradwire.attach(ddp, "int8")
        >>> gradwire.load_hook_state(ddp, "checkpoint/hook")
    """
    _collective(ddp, "load_hook_state").load_hook_state(os.fspath(folder), strict)


def hook_state_dict(ddp: DistributedDataParallel) -> dict[str, Any]:
    """This rank's part of the hook's state, for torch.save and torch.load.

    It consists of numbers, strings, lists and tensors, so ``weights_only`` can load it.
    Each rank has its own. Collective.

    Example::

        >>> torch.save(gradwire.hook_state_dict(ddp), f"hook{rank}.pt")
    """
    return _collective(ddp, "hook_state_dict").hook_state_dict()


def load_hook_state_dict(ddp: DistributedDataParallel, state: dict[str, Any]) -> None:
    """Continue from what :func:`hook_state_dict` returned on this rank. Collective.

    Example::

        >>> gradwire.load_hook_state_dict(ddp, torch.load(f"hook{rank}.pt"))
    """
    # Anything else than a dictionary lacks all keys, and all ranks are told so.
    checked = state if isinstance(state, dict) else {}
    _collective(ddp, "load_hook_state_dict").load_hook_state_dict(checked)
