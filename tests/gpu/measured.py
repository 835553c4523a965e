"""What PyTorch's side of the benchmarks shares: how long work on the GPU takes, and where figures go."""
import json
import os
import statistics


def milliseconds(torch, work, calls=10):
    """The median of nine measurements of several calls each."""
    for _ in range(3):
        work()
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def note(row):
    """For report.py."""
    if path := os.environ.get("MEASUREMENTS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
