"""The Python twin of ddp_step.cpp: one rank with PyTorch's own DDP."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--view", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    n = options.width
    net = nn.Sequential(
        nn.Linear(1024, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 10)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            index = torch.arange(parameter.numel()).float()
            parameter.copy_((index * 0.01).sin().mul_(0.02).view(parameter.shape))
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=options.view)
    inputs = torch.ones(options.batch, 1024) * (rank + 1)

    step_ms = []
    for step in range(options.warmup + options.steps):
        ddp.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        ddp(inputs).sum().backward()
        spent = time.perf_counter() - start
        if step >= options.warmup:
            step_ms.append(spent * 1e3)
    norm = sum(parameter.grad.norm().item() for parameter in net.parameters())
    if rank == 0:
        print(json.dumps({"step_ms": step_ms, "gradient_norm": norm}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
