"""Trains a cnn on Fashion-MNIST with PyTorch's DDP and one line of gradwire.

    make python
    .venv/bin/torchrun --nproc-per-node 2 examples/train_fashion.py --hook int8

Rank 0 prints the bytes sent per step and the accuracy: about 89 % after two epochs.
"""

import argparse
import gzip
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")


def load(folder, part):
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    x = torch.frombuffer(bytearray(images[16:]), dtype=torch.uint8)
    y = torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8)
    return x.view(-1, 1, 28, 28).float().div_(255), y.long()


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hook", default="int8")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="stop an epoch after so many")
    parser.add_argument("--batch", type=int, default=128, help="of all ranks together")
    parser.add_argument("--data", type=pathlib.Path, default=FOLDER)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    ddp = DistributedDataParallel(cnn())
    gradwire.attach(ddp, options.hook)
    sgd = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    x, y = load(options.data, "train")
    for _ in range(options.epochs):
        order = torch.randperm(len(x)).split(options.batch)  # the same on all ranks
        for indices in order[: options.steps]:
            mine = indices[rank::world]
            sgd.zero_grad()
            nn.functional.cross_entropy(ddp(x[mine]), y[mine]).backward()
            sgd.step()

    x, y = load(options.data, "t10k")
    with torch.no_grad():
        correct = (ddp.module(x).argmax(1) == y).float().mean().item()
    if rank == 0:
        stats = gradwire.stats(ddp)
        print(
            f"hook {stats['hook']}, {stats['steps']} steps, "
            f"{sum(stats['last']['sent'].values()) / 1e3:.0f} kB sent a step, "
            f"{stats['ratio']:.2f} times less than without, accuracy {correct:.4f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
