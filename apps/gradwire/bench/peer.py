"""One rank of PyTorch's own DDP, measured beside gradwire's.

Run by `gradwire bench --peer PYTHON`, which sends a command a line:
  verify I      one step of hook I, compared with the exact average
  run I STEPS   timed steps of hook I
Answers are lines of JSON behind the word that starts gradwire's own.
Arguments: layer sizes (a list by commas), batch, bucket MiB, and hooks: "none", names of
DDPCommHookType, or "attach SPEC" for one of gradwire's.
"""

import ctypes
import json
import math
import sys
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    register_ddp_comm_hook,
)
from torch.nn.parallel import DistributedDataParallel

ANSWER = "gradwire-bench "
ATTACH = "attach "


def make_module(sizes):
    torch.manual_seed(1)
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_ddp(sizes, bucket_mb, hook):
    ddp = DistributedDataParallel(
        make_module(sizes), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
    )
    if hook.startswith(ATTACH):
        import gradwire

        gradwire.attach(ddp, hook.removeprefix(ATTACH))
    elif hook != "none":
        register_ddp_comm_hook(DDPCommHookType[hook], ddp)
    return ddp


def gradients(module):
    return torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])


def step(ddp, inputs):
    ddp.zero_grad(set_to_none=True)
    dist.barrier()
    start = time.perf_counter()
    ddp(inputs).sum().backward()
    return (time.perf_counter() - start) * 1e3


def verify(ddp, inputs, sizes):
    local = make_module(sizes)
    local(inputs).sum().backward()
    exact = gradients(local).double()
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    step(ddp, inputs)
    result = gradients(ddp)
    content = ctypes.string_at(result.data_ptr(), result.nbytes)
    error = ((result.double() - exact).norm() / exact.norm()).item()
    return {
        "relative_error": error if math.isfinite(error) else None,
        "fingerprint": str(zlib.crc32(content)),
        "parameters": result.numel(),
        "torch": torch.__version__,
    }


def main():
    sizes = [int(size) for size in sys.argv[1].split(",")]
    batch, bucket_mb = int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ddps = [make_ddp(sizes, bucket_mb, hook) for hook in sys.argv[4:]]
    torch.manual_seed(1000 + dist.get_rank())
    inputs = torch.randn(batch, sizes[0])
    for line in sys.stdin:
        verb, index, *steps = line.split()
        ddp = ddps[int(index)]
        if verb == "verify":
            answer = verify(ddp, inputs, sizes)
        else:
            answer = {"step_ms": [step(ddp, inputs) for _ in range(int(steps[0]))]}
        print(ANSWER + json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
