"""Native groups for the process groups of torch.distributed."""

from __future__ import annotations

import atexit
import weakref

import torch.distributed as dist

from ._native import Group

_adopted: weakref.WeakKeyDictionary[dist.ProcessGroup, Group] = (
    weakref.WeakKeyDictionary()
)


# Of the ranks of this machine, by the group that they are a part of.
_machines: weakref.WeakKeyDictionary[dist.ProcessGroup, Group] = (
    weakref.WeakKeyDictionary()
)


# Before Python is taken apart: threads of groups may still call into it.
@atexit.register
def _forget_all() -> None:
    _machines.clear()
    _adopted.clear()


def checked_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group itself, or the default group for None.

    Raises TypeError for anything else, and ValueError on ranks outside the group.
    """
    if group is None:
        if not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialised: call init_process_group first"
            )
        return dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of the process group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"got a {type(group).__name__} as process group, expected "
            "torch.distributed.ProcessGroup or None"
        )
    return group


def native_group(group: dist.ProcessGroup | None) -> Group:
    """A group of the same ranks with gradwire's own connections.

    Collective over the group; the first call connects.
    """
    group = checked_group(group)
    adopted = _adopted.get(group)
    if adopted is None:
        adopted = _adopted[group] = Group.adopt(group)
    return adopted


def machine_group(group: dist.ProcessGroup | None) -> Group:
    """The ranks of the group that are on this machine, as the launcher placed them.

    Collective over the group; the first call connects. Raises ValueError on every rank
    if no launcher says where ranks are.
    """
    group = checked_group(group)
    machine = _machines.get(group)
    if machine is None:
        machine = _machines[group] = native_group(group).machine()
    return machine
