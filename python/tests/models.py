"""A small model and data, equal on every rank or known by rank."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def net(sizes=(6, 40, 30, 4), seed=1):
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Task(nn.Module):
    """The model of PyTorch's own tests of hooks: one parameter of 40 x 20."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.p = nn.Parameter(torch.randn(40, 20))

    def forward(self, rank):
        generator = torch.Generator().manual_seed(2020)
        return (self.p * torch.randn(40, 20, generator=generator) ** (1 + rank)).mean()


def task_gradient(ddp, rank):
    """Of a DDP of Task."""
    ddp.zero_grad()
    ddp(rank % 2).backward()
    return flat_gradient(ddp)


def batch(rank, step, rows=8, width=6):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(rows, width, generator=generator)


def make_ddp(module=None, **options):
    options.setdefault("bucket_cap_mb", 0.005)
    return DistributedDataParallel(module or net(), **options)


def flat_gradient(module):
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()])


def flat_parameters(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def exact_gradient(world, step, module=None):
    """The average over ranks, computed alone."""
    total = None
    for rank in range(world):
        local = net() if module is None else module()
        local(batch(rank, step)).square().sum().backward()
        gradient = flat_gradient(local).double()
        total = gradient if total is None else total + gradient
    return total / world


def train(ddp, rank, steps, lr=0.05, first=0):
    """SGD with momentum; returns the parameters."""
    sgd = torch.optim.SGD(ddp.parameters(), lr, momentum=0.9)
    for step in range(first, first + steps):
        sgd.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
        sgd.step()
    return flat_parameters(ddp)
