"""Rank 0 is lost, with its store or without: others hear of it within a timeout."""

import os
import signal
import socket
import subprocess
import sys

import pytest
import torch.distributed as dist

SCRIPT = """
import datetime, os, sys, time
import torch, torch._dynamo, torch.distributed as dist
import gradwire

rank, port, folder, call = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
dist.barrier()  # from here on no rank is slower than the timeout
group = dist.new_group(timeout=datetime.timedelta(seconds=2))
ddp = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Linear(9, 9), process_group=group)
if call.endswith("hook_state"):
    gradwire.attach(ddp, "int8")
    gradwire.save_hook_state(ddp, folder)
calls = {
    "attach": lambda: gradwire.attach(ddp, "int8"),
    "save_hook_state": lambda: gradwire.save_hook_state(ddp, folder),
    "load_hook_state": lambda: gradwire.load_hook_state(ddp, folder),
    "compressed_all_reduce":
        lambda: gradwire.compressed_all_reduce(torch.ones(9), "int8", group),
}
store = dist.distributed_c10d._get_default_store()
keys = store.num_keys()
print("ready", flush=True)
line = sys.stdin.readline()
if rank == 0:
    if line == "go\\n":
        calls[call]()
    time.sleep(100)
if line == "see rank 0 arrive\\n":
    # It waits for this rank once it has written what it has to.
    before, now = keys, store.num_keys()
    while now == keys or now != before:
        time.sleep(0.1)
        before, now = now, store.num_keys()
    print("arrived", flush=True)
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


class Ranks:
    """Two, of which rank 0 is lost."""

    def __init__(self, call, folder, port, **environment):
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
        self.processes = [
            subprocess.Popen(
                [*command, str(rank), port, str(folder), call],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment, "RANK": str(rank)},
            )
            for rank in range(2)
        ]

    def __enter__(self):
        for rank in range(2):
            self.expect(rank, "ready")
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.communicate()

    def tell(self, rank, line):
        self.processes[rank].stdin.write(line + "\n")
        self.processes[rank].stdin.flush()

    def expect(self, rank, line):
        assert self.processes[rank].stdout.readline() == line + "\n"

    def lose(self, how):
        """Rank 1 goes on without rank 0 and is told."""
        self.processes[0].send_signal(signal.Signals[how])
        output, _ = self.processes[1].communicate("\n", timeout=60)
        assert output.startswith("RuntimeError True True [gradwire.comm] "), output


CALLS = ["attach", "save_hook_state", "load_hook_state", "compressed_all_reduce"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("lost", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_0_is_a_runtime_error_in_time(lost, call, tmp_path):
    with Ranks(call, tmp_path, free_port()) as ranks:
        ranks.lose(lost)


def lose_inside(ranks, lost):
    ranks.tell(1, "see rank 0 arrive")
    ranks.tell(0, "go")
    ranks.expect(1, "arrived")
    return ranks.lose(lost)


# Under torchrun the launcher serves the store: what rank 0 has written is still there.
@pytest.mark.parametrize("server", ["rank 0", "launcher"])
@pytest.mark.parametrize("lost", ["SIGKILL", "SIGSTOP"])
def test_rank_0_is_lost_inside_of_attach(lost, server, tmp_path):
    port, environment = free_port(), {}
    if server == "launcher":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = str(store.port)
        environment = {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "WORLD_SIZE": "2",
        }
    with Ranks("attach", tmp_path, port, **environment) as ranks:
        ranks.tell(1, "see rank 0 arrive")
        ranks.tell(0, "go")
        ranks.expect(1, "arrived")
        ranks.lose(lost)
