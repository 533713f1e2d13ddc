"""Parameters as users hand them over."""

from __future__ import annotations

from typing import Any, Iterable

import torch


def parameters_of(params: Iterable[Any]) -> list[torch.Tensor]:
    """Of a model's parameters or an optimizer's groups: every tensor once, in order.

    Raises TypeError for anything else.
    """
    found: dict[int, torch.Tensor] = {}
    for each in params:
        members = each["params"] if isinstance(each, dict) else [each]
        for tensor in members:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"got a {type(tensor).__name__} among the parameters, expected "
                    "tensors or an optimizer's param_groups"
                )
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def numbered(tensors: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """With names that are the same on all ranks."""
    return [(str(number), tensor) for number, tensor in enumerate(tensors)]


def same(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether they are the same objects in the same order."""
    return len(tensors) == len(others) and all(
        one is other for one, other in zip(tensors, others)
    )
