"""What torch.profiler shows of the hooks."""

import pytest
import torch
from models import make_ddp, train
from ranks import run

import gradwire
from gradwire.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook


def profiled(rank, world, hook):
    ddp = make_ddp()
    if hook == "function":
        state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
        ddp.register_comm_hook(state, powerSGD_hook)
    else:
        gradwire.attach(ddp, hook)
    # The threads of the hook are older than the profiler. The first call of a group
    # connects, on a thread that nobody watches.
    train(ddp, rank, 3)
    gradwire.compressed_all_reduce(torch.ones(9))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        train(ddp, rank, 1)
        gradwire.compressed_all_reduce(torch.ones(9))
    train(ddp, rank, 1)
    return {
        (event.name, event.thread)
        for event in seen.events()
        if event.name.startswith("gradwire::")
    }


@pytest.mark.parametrize("hook", ["int8", "powersgd:start=2", "function"])
def test_buckets_and_phases_are_ranges(hook):
    for ranges in run(3, profiled, hook):
        titles = {name.split(" bucket ")[0] for name, _ in ranges if " bucket " in name}
        (title,) = titles
        assert title.startswith("gradwire::int8" if hook == "int8" else "gradwire::powersgd")
        threads = {name: thread for name, thread in ranges}
        phases = ["P", "Q"] if "powersgd" in title else ["all-to-all", "all-gather"]
        for bucket in range(2):
            of_bucket = f"{title} bucket {bucket}"
            for phase in phases:
                assert threads[f"{of_bucket} {phase}"] != threads[of_bucket]
        assert "gradwire::compressed_all_reduce all-to-all" in threads
