"""Rank 0, which serves the store, is lost: others hear of it within a timeout."""

import signal
import socket
import subprocess
import sys

import pytest

SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist
import gradwire

rank, port, call = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
group = dist.new_group(timeout=datetime.timedelta(seconds=2))
ddp = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Linear(9, 9), process_group=group)
if call == "save_hook_state":
    gradwire.attach(ddp, "int8")
calls = {
    "attach": lambda: gradwire.attach(ddp, "int8"),
    "save_hook_state": lambda: gradwire.save_hook_state(ddp, "/nowhere"),
    "compressed_all_reduce":
        lambda: gradwire.compressed_all_reduce(torch.ones(9), "int8", group),
}
if rank == 0:
    print("ready", flush=True)
    time.sleep(100)
print("ready", flush=True)
sys.stdin.readline()
started = time.monotonic()
try:
    calls[call]()
except Exception as error:
    took = time.monotonic() - started
    print(type(error).__name__, took < 12, "rank 0" in str(error), error, flush=True)
os._exit(0)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.parametrize("call", ["attach", "save_hook_state", "compressed_all_reduce"])
@pytest.mark.parametrize("lost", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_0_is_a_runtime_error_in_time(lost, call):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    rest = [free_port(), call]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [
        subprocess.Popen([*command, str(rank), *rest], text=True, **pipes)
        for rank in range(2)
    ]
    try:
        assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 2
        ranks[0].send_signal(signal.Signals[lost])
        output, _ = ranks[1].communicate("\n", timeout=60)
        assert output.startswith("RuntimeError True True [gradwire.comm] "), output
    finally:
        for process in ranks:
            process.kill()
            process.wait()
