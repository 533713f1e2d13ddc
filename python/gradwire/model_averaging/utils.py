"""Averages of parameters, at once."""

from __future__ import annotations

from typing import Any, Iterable

import torch
import torch.distributed as dist

from .. import _futures
from .._collectives import wait
from .._groups import native_group
from .._parameters import parameters_of
from .._torch import hand_on

__all__ = [
    "average_parameters",
    "average_parameters_or_parameter_groups",
    "get_params_to_average",
]

__getattr__ = hand_on(__name__)


def _as_real(parameter: torch.Tensor) -> torch.Tensor:
    tensor = parameter.detach()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if not tensor.is_floating_point() or tensor.layout != torch.strided:
        kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
        raise TypeError(f"got a tensor of {kind}, expected a dense tensor of floats")
    return tensor


def _average(tensors: list[torch.Tensor], group: Any, dtype: torch.dtype) -> None:
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1).to(dtype) for tensor in tensors])
    wait(_futures.start(lambda done: group.average(flat, done)))
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts):
        tensor.copy_(part.view_as(tensor))


def average_parameters(
    params: Iterable[torch.Tensor], process_group: dist.ProcessGroup | None
) -> None:
    """Replace parameters by their averages over the group, taken in fp32 at least.

    Does nothing on ranks outside the group. Collective.

    Example::

        >>> average_parameters(model.parameters(), None)
    """
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        return
    tensors = [_as_real(parameter) for parameter in parameters_of(params)]
    group = native_group(process_group)
    double = [tensor for tensor in tensors if tensor.dtype == torch.float64]
    single = [tensor for tensor in tensors if tensor.dtype != torch.float64]
    with torch.no_grad():
        _average(single, group, torch.float32)
        _average(double, group, torch.float64)


def get_params_to_average(params: Iterable[Any]) -> list[torch.Tensor]:
    """All parameters of a model, or of an optimizer's groups.

    PyTorch's function leaves out those without a gradient on this rank, which are not
    the same ones on every rank.

    Example::

        >>> get_params_to_average(optimizer.param_groups)
    """
    return parameters_of(params)


def average_parameters_or_parameter_groups(
    params: Iterable[Any], process_group: dist.ProcessGroup | None
) -> None:
    """The same for a model's parameters or an optimizer's groups. Collective.

    Example::

        >>> average_parameters_or_parameter_groups(optimizer.param_groups, None)
    """
    average_parameters(get_params_to_average(params), process_group)
