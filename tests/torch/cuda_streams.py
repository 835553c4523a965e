"""On which streams of CUDA the backend's calls run, and who waits for whom, with doubles of CUDA and of moeccl on GPUs.

    python tests/torch/cuda_streams.py INCLUDE
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SIDE = "stream 7"


def load(include):
    """The doubles, whose functions all others find first."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cuda_streams.cc")
    with tempfile.TemporaryDirectory() as folder:
        doubles = cpp_extension.load(
            "moeccl_cuda_streams", source, extra_cflags=["-std=c++20", "-O0", "-g0"], extra_include_paths=[include], build_directory=folder
        )
    sys.setdlopenflags(flags)
    return doubles


def one(calls, begin, end=""):
    """The place of the one call that begins and ends so."""
    found = [i for i, call in enumerate(calls) if call.startswith(begin) and call.endswith(end)]
    assert len(found) == 1, (begin, end, calls)
    return found[0]


def side_stream(doubles, call):
    """`call` returns work that is behind what was there before, beside what comes, and awaited by who waits alone."""
    work = call()
    calls = doubles.calls()
    launch = one(calls, f"all-reduce on {SIDE}")
    begin = calls[:launch].index("stream 0 records " + calls[one(calls[:launch], f"{SIDE} waits for ")].removeprefix(f"{SIDE} waits for "))
    assert begin < launch
    assert f"memory is kept for {SIDE}" in calls
    assert not [call for call in calls if call.startswith("stream 0 waits")], calls
    ended = {call.removeprefix(f"{SIDE} records ") for call in calls[launch:] if call.startswith(f"{SIDE} records ")}
    work.wait()
    awaited = {call.removeprefix("stream 0 waits for ") for call in doubles.calls() if call.startswith("stream 0 waits for ")}
    assert awaited and awaited <= ended, (calls, awaited)


def main():
    doubles = load(sys.argv[1])
    import moeccl  # noqa: F401: the backend

    doubles.install()
    dist.init_process_group("cpu:moeccl,cuda:moeccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    tensor = doubles.tensor(8)
    # Whoever waits at once gains nothing by another stream.
    dist.all_reduce(tensor)
    calls = doubles.calls()
    one(calls, "all-reduce on stream 0")
    assert not [call for call in calls if SIDE in call], calls

    side_stream(doubles, lambda: dist.all_reduce(tensor, async_op=True))

    def coalesced():
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(tensor)
        return manager

    side_stream(doubles, coalesced)

    # Calls of one coalesced group run on one device.
    for first, second, words in ((tensor, torch.ones(8), "on the CPU, calls before it on CUDA"),
                                 (torch.ones(8), tensor, "on CUDA, calls before it on the CPU")):
        try:
            with dist._coalescing_manager(device=torch.device("cpu")):
                dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([first])
                dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([second])
            raise AssertionError("a group of both kinds was made")
        except RuntimeError as error:
            assert words in str(error), error
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    print("streams of CUDA: as they must be")


if __name__ == "__main__":
    main()
