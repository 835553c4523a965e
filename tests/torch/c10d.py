"""Runs PyTorch's own tests of backends, those of torch.testing._internal.distributed.distributed_test, on moeccl:

    torchrun --standalone --nproc-per-node 4 tests/torch/c10d.py [PATTERN]

Each runs in all ranks of this job, with a process group of its own. They ask by the name of the backend what they may demand,
so they run under Gloo's name. Prints a line for each, and why it was left out, and counts at the end. The exit code is 0 only
if some passed and none failed.
"""

import collections
import datetime
import os
import re
import sys
import time
import traceback
import unittest

os.environ["BACKEND"] = "gloo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

TIMEOUT = datetime.timedelta(seconds=20)
SKIPS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
# What is asked of other backends alone, by patterns of the tests' names.
LEFT_OUT = {
    r"_cuda|_gpu|nccl|mixed_backend|isend_irecv_op_err": "asks for GPUs",
    r"SyncBatchNorm_process_group": "asks for torchvision",
    r"barrier_timeout_global|get_backend|ddp_logging_data_cpu": "asks for Gloo by its name",
    r"sparse": "asks for sparse tensors, which the backend does not take",
    r"monitored_barrier": "looks for Gloo's texts",
}


class C10d(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    pass


def run(name, rank, ranks, store):
    """The result of a test on this rank, with a text."""
    for pattern, why in LEFT_OUT.items():
        if re.search(pattern, name):
            return "left out", why
    test = C10d(name)
    test.rank = rank
    test.file_name = os.path.join(os.environ["TEMP_DIR"], name)
    try:
        dist.init_process_group("cpu:moeccl", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
        if rank == 0:
            distributed_test.Barrier.init()
        distributed_test.Barrier.barrier_id = 0
        dist.barrier()
        getattr(test, name)()
        dist.barrier()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "left out", str(skip)
    except SystemExit as end:
        return "left out", SKIPS.get(end.code, f"ended with {end.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    store = dist.PrefixStore("c10d", dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks,
                                                   is_master=False))
    if rank == 0:
        distributed_test.initialize_temp_directories()
        store.set("folder", os.environ["TEMP_DIR"])
    os.environ["TEMP_DIR"] = store.get("folder").decode()
    counts = collections.Counter()
    for name in sorted(vars(distributed_test.DistributedTest._DistTestBase)):
        if not name.startswith("test_") or not re.search(pattern, name):
            continue
        began = time.monotonic()
        torch.manual_seed(0)
        store.set(f"{name} {rank}", "\n".join(run(name, rank, ranks, dist.PrefixStore(name, store))))
        # In step, whatever became of it.
        results = [store.get(f"{name} {other}").decode().split("\n", 1) for other in range(ranks)]
        worst = min(results, key=lambda result: ["failed", "left out", "passed"].index(result[0]))
        counts[worst[0]] += 1
        if rank == 0:
            print(f"{name}: {worst[0]}" + (f": {worst[1]}" if worst[1] else f" in {time.monotonic() - began:.1f} s"), flush=True)
    if rank == 0:
        print(", ".join(f"{counts[result]} {result}" for result in ("passed", "failed", "left out")))
    sys.exit(counts["failed"] > 0 or counts["passed"] == 0)


if __name__ == "__main__":
    main()
