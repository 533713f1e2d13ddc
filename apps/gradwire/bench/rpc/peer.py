"""One worker of PyTorch's own RPC, measured beside gradwire's.

Run by `gradwire bench rpc --peer PYTHON`, which sends a command a line:
  small N     N calls of a Python function with a small tensor
  script N    the same of a TorchScript function
  large N     calls with a tensor of 16 MB
  hybrid N    steps of the model of ddp_under_dist_autograd_test
Only the last rank measures. Answers are lines of JSON behind the word that
starts gradwire's own. Argument: tcp or shm.
"""

import json
import os
import pickle
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ANSWER = "gradwire-bench "
TRAINERS = 4
REMOTE = "worker4"
trainers = None


def small(x):
    return x + 1


@torch.jit.script
def scripted(x):
    return x + 1


def first_of(x):
    return x[:1].clone()


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1)
        layer.weight[0][0] = -1
    return layer


class RemoteEM(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(2, 3, mode="mean")
        nn.init.constant_(self.table.weight, 0.5)

    def forward(self, ids):
        return self.table(ids, torch.arange(ids.shape[0]))


class RemoteNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = linear(5, 3)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Trainer:
    def __init__(self, em, net):
        self.em, self.net = em, net
        self.fc1, self.fc2 = linear(2, 2), linear(3, 1)
        self.ddp = DistributedDataParallel(self.fc2, process_group=trainers)

    def train(self, dense, sparse, values):
        with dist_autograd.context() as context:
            rows = self.em.rpc_sync().forward(sparse)
            hidden = self.net.rpc_sync().forward(
                torch.cat((self.fc1(dense), rows), dim=1)
            )
            loss = (self.ddp(hidden) * values).sum()
            dist_autograd.backward(context, [loss])
            gradients = dist_autograd.get_gradients(context)
            return [gradients[self.fc2.weight]], [gradients[self.fc1.weight]]


def examples():
    rows = [
        (x, y, z, value)
        for value in (-1.0, 1.0)
        for x in (-value, value)
        for y in (value, -value)
        for z in (0, 1)
    ]
    dense = torch.tensor([[x, y] for x, y, _, _ in rows])
    sparse = torch.tensor([z for _, _, z, _ in rows])
    values = torch.tensor([value for *_, value in rows])
    share = len(rows) // TRAINERS
    return [
        tuple(part[i * share : (i + 1) * share] for part in (dense, sparse, values))
        for i in range(TRAINERS)
    ]


class Master:
    def __init__(self):
        self.small = torch.ones(8)
        self.large = torch.ones(4 << 20)
        em = rpc.remote(REMOTE, RemoteEM)
        net = rpc.remote(REMOTE, RemoteNet)
        self.trainers = [
            rpc.remote(f"worker{i}", Trainer, args=(em, net)) for i in range(TRAINERS)
        ]
        for trainer in self.trainers:
            trainer.confirmed_by_owner()
        self.examples = examples()

    def hybrid(self):
        replies = [
            trainer.rpc_async().train(*batch)
            for trainer, batch in zip(self.trainers, self.examples)
        ]
        return [reply.wait() for reply in replies]

    def act(self, verb):
        if verb == "small":
            return rpc.rpc_sync(REMOTE, small, args=(self.small,))
        if verb == "script":
            return rpc.rpc_sync(REMOTE, scripted, args=(self.small,))
        if verb == "large":
            return rpc.rpc_sync(REMOTE, first_of, args=(self.large,))
        return self.hybrid()

    def measure(self, verb, count):
        times = []
        for _ in range(count):
            start = time.perf_counter()
            result = self.act(verb)
            times.append((time.perf_counter() - start) * 1e3)
        if verb == "hybrid":
            result = result[0][1][0]
        return {
            "ms": times,
            "sum": float(result.sum()),
            "torch": torch.__version__,
        }


def object_of(tensor, size, group):
    return pickle.loads(bytes(tensor.tolist())[:size])


def main():
    global trainers
    # init_rpc exchanges objects once, for which torch would want numpy.
    dist.distributed_c10d._tensor_to_object = object_of
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = dist.new_group(list(range(TRAINERS)))
    # PyTorch's own choice is shared memory.
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{os.environ['GRADWIRE_RPC_PORT']}",
        _transports=["uv"] if sys.argv[1] == "tcp" else None,
    )
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options
    )
    dist.barrier()
    master = Master() if rank == world - 1 else None
    for line in sys.stdin:
        verb, count = line.split()
        answer = master.measure(verb, int(count)) if master else {}
        print(ANSWER + json.dumps(answer), flush=True)
    os._exit(0)


main()
