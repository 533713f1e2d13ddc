"""Ranks as processes, for tests."""

import datetime
import multiprocessing
import os
import pickle
import queue
import tempfile
import traceback

import torch
import torch.distributed as dist

# Processes are forked from one that has imported what takes long, torch._dynamo
# because every DDP imports it, and gradwire.optim for what it imports of torch.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch", "torch.distributed", "torch._dynamo", "gradwire", "gradwire.optim"]
)


def _rank(rank, world, store, results, body, args, timeout):
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, world),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=timeout),
        )
        result = body(rank, world, *args)
        dist.barrier()
        dist.destroy_process_group()
        # By value: tensors would go through shared memory that ends with us.
        results.put((rank, pickle.dumps(result), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise SystemExit(1)


def run(world, body, *args, timeout=30):
    """What ``body(rank, world, *args)`` returns on every rank.

    Raises AssertionError with the traceback of the first rank that failed.
    """
    results = _context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [
            _context.Process(
                target=_rank,
                args=(rank, world, store, results, body, args, timeout),
                daemon=True,
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        answers = {}
        try:
            while len(answers) < world:
                rank, value, error = results.get(timeout=timeout + 30)
                assert error is None, f"rank {rank}: {error}"
                answers[rank] = pickle.loads(value)
        except queue.Empty:
            missing = sorted(set(range(world)) - set(answers))
            raise AssertionError(f"ranks {missing} did not answer") from None
        finally:
            for process in processes:
                if len(answers) < world:
                    process.kill()
                process.join()
        for rank, process in enumerate(processes):
            assert process.exitcode == 0, f"rank {rank} exited {process.exitcode}"
        return [answers[rank] for rank in range(world)]


def error_of(call, *args, **kwargs):
    """Type and text of what ``call`` raises."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", "raised"
