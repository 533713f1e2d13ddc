"""How processes with gradwire start and end."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from models import batch, make_ddp
from ranks import run

import gradwire

LONE_WAITER = """
import sys, time
import torch, torch.distributed as dist
import gradwire
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=int(sys.argv[2]), world_size=2)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
if sys.argv[2] == "1":
    time.sleep(30)
print("attaching", flush=True)
gradwire.attach(ddp, "int8")
"""


def test_ctrl_c_ends_waiting_for_others(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", LONE_WAITER, str(tmp_path / "store")]
    late = subprocess.Popen([*command, "1"])
    early = subprocess.Popen(
        [*command, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert early.stdout.readline() == "attaching\n"
        time.sleep(0.5)
        early.send_signal(signal.SIGINT)
        _, errors = early.communicate(timeout=10)
        assert errors.splitlines()[-1].endswith("KeyboardInterrupt")
        assert early.returncode != 0
    finally:
        late.kill()
        early.kill()


SPAWNED = """
import sys
import torch, torch.distributed as dist
import gradwire

def body(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    gradwire.attach(ddp, "int8")
    for _ in range(3):
        ddp(torch.ones(1, 64)).sum().backward()
    print(f"rank {rank}: {gradwire.stats(ddp)['steps']} steps\\n", end="", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(body, (sys.argv[1],), nprocs=2)
"""


def test_spawn(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0: 3 steps", "rank 1: 3 steps"]


def ends_with_work_under_way(rank, world):
    values = torch.full((1000,), float(rank))
    gradwire.compressed_all_reduce(values)
    ddp = make_ddp()
    gradwire.attach(ddp, "int8")
    ddp(batch(rank, 0)).square().sum().backward()
    dist.barrier()
    # Nobody waits for it; DDP, hook and group are alive at the end.
    gradwire.compressed_all_reduce(torch.ones(1 << 20), async_op=True)


def test_a_process_may_end_with_work_under_way():
    run(2, ends_with_work_under_way)  # asserts exit codes of 0
