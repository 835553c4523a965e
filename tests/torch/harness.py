"""Runs checks on all ranks of a job that torchrun started."""

import datetime
import os
import shutil
import sys
import tempfile
import time

import torch.distributed as dist

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def raises(call, *parts):
    """The text of the error that call() must raise, which has all parts."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
        return str(error)
    raise AssertionError(f"no error with {parts}")


class folder:
    """The same on all ranks, gone behind the block."""

    def __enter__(self):
        holder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(holder, 0)
        self.path = holder[0]
        return self.path

    def __exit__(self, *_):
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.path)


def main(start):
    """Calls start() in a process group of BACKEND, and the checks that are named in the arguments, or all."""
    assert os.environ.get("TORCHELASTIC_RUN_ID"), "start it by torchrun"
    dist.init_process_group(os.environ.get("BACKEND", "cpu:moeccl"), timeout=datetime.timedelta(seconds=300))
    start()
    wanted = sys.argv[1:] or [each.__name__ for each in CHECKS]
    for each in CHECKS:
        if each.__name__ not in wanted:
            continue
        started = time.monotonic()
        each()
        if dist.get_rank() == 0:
            print(f"ok {each.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    ranks = dist.get_world_size()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{len(wanted)} checks passed on {ranks} ranks", flush=True)
