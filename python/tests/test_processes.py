"""How processes with gradwire start and end."""

import os
import signal
import subprocess
import sys
import time

import pytest

# Whoever runs the tests in the background has them ignore Ctrl-C from the start.
LONE_WAITER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
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
        _, errors = early.communicate(timeout=20)
        assert errors.splitlines()[-1].endswith("KeyboardInterrupt")
        # As Python ends, or as torch's own handler of uncaught exceptions does.
        assert early.returncode in (-signal.SIGINT, 1)
    finally:
        for process in (late, early):
            process.kill()
            process.wait()


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


ENDING = """
import sys
import torch, torch.distributed as dist
import gradwire
rank, late = int(sys.argv[2]), sys.argv[3] == "late"
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
gradwire.attach(ddp, "int8")
ddp(torch.ones(1, 64)).sum().backward()
gradwire.compressed_all_reduce(torch.ones(1000))
values = torch.full((1 << 20,), 1.0 + rank)
if late and rank == 1:
    print(rank, flush=True)
    sys.stdin.readline()
    gradwire.compressed_all_reduce(values, "fp16")
    print(values.unique().tolist(), flush=True)
else:
    gradwire.compressed_all_reduce(values, "fp16", async_op=True)
    print(rank, flush=True)
"""


@pytest.mark.parametrize("when", ["both", "late"])
def test_what_is_under_way_at_the_end_is_finished(when, tmp_path):
    # DDP, hook and groups are alive at the end and nobody waits for the last call.
    command = [sys.executable, "-W", "ignore", "-c", ENDING, str(tmp_path / "store")]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    ranks = [
        subprocess.Popen([*command, str(rank), when], text=True, **pipes)
        for rank in range(2)
    ]
    try:
        for rank in range(2):
            assert ranks[rank].stdout.readline() == f"{rank}\n"
        outputs = [process.communicate("\n", timeout=60) for process in reversed(ranks)]
        expected = "[3.0]\n" if when == "late" else ""
        assert outputs == [(expected, ""), ("", "")]
        assert [process.returncode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


FORKING = """
import multiprocessing, os, sys
import torch, torch.distributed as dist
import gradwire

def nothing():
    pass

rank = int(sys.argv[2])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
gradwire.attach(ddp, "int8")
ddp(torch.ones(1, 64)).sum().backward()
gradwire.compressed_all_reduce(torch.ones(1000))
child = multiprocessing.get_context("fork").Process(target=nothing)
child.start()
child.join()
codes = [child.exitcode]
rows = torch.utils.data.DataLoader(
    [torch.ones(64)] * 4, num_workers=1, multiprocessing_context="fork")
for row in rows:  # a worker is there, and ends, while the hook is at work
    ddp(row).sum().backward()
if rank == 0:  # under way until rank 1 is told to take part
    future = gradwire.compressed_all_reduce(torch.ones(9), async_op=True)
for end in ("exit", "end of the script"):
    if not (child := os.fork()):
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    if rank == 0:
        store.set("go", "")
        future.wait()
    else:
        store.wait(["go"])
        gradwire.compressed_all_reduce(torch.ones(9))
    ddp(torch.ones(1, 64)).sum().backward()
    print(codes, gradwire.stats(ddp)["steps"], flush=True)
if end == "exit":
    sys.exit(0)
"""


def test_a_forked_child_ends_and_the_parent_goes_on(tmp_path):
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, tmp_path / "store", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=100) for process in ranks]
        assert outputs == [("[0, 0, 0] 6\n", "")] * 2
        assert [process.returncode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
