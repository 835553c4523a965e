"""What PyTorch's side of the benchmarks shares: how long work on the GPU takes, and where figures go."""
import json
import math
import os
import statistics
import subprocess
import tempfile


def timed(torch, enqueue, calls):
    """Microseconds of a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    enqueue()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def microseconds(torch, work, turns=1, captured=True):
    """The median of nine measurements of several calls work(turn) each, as a graph replays them where it can."""
    for turn in range(3):
        work(turn % turns)
    estimate = timed(torch, lambda: work(0), 1)
    calls = int(min(max(20000 / max(estimate, 1), 1), max(turns, 20)))

    def every():
        for call in range(calls):
            work(call % turns)

    enqueue = every
    if captured:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                every()
            enqueue = graph.replay
        except RuntimeError:  # it waits for the GPU
            torch.cuda.synchronize()
    timed(torch, enqueue, calls)
    return statistics.median(timed(torch, enqueue, calls) for _ in range(9))


TIMES = ("us", "copy_us", "forward_ms", "both_ms", "rate")  # where a row has them


def is_row(row):
    """Whether all of its numbers are numbers, and what it divides by is above 0."""
    if not isinstance(row, dict):
        return False
    if not all(isinstance(row[time], (int, float)) and row[time] > 0 for time in TIMES if time in row):
        return False
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def rows_of(lines):
    """What a program has noted. It may have been stopped in the middle of a line, or have had no number to write."""
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if is_row(row):
            rows.append(row)
        else:
            print(f"no row: {line.strip()}")
    return rows


def note(row):
    """For report.py."""
    if path := os.environ.get("MEASUREMENTS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def tell(beside):
    """Of each figure: whether PyTorch's is there. Ends what measures, for tests/gpu/parts.sh to count."""
    print(f"{len(beside)} passed, 0 failed, {beside.count(False)} skipped")


def first_line(error):
    return (str(error) or repr(error)).splitlines()[0]


def usable_torch():
    """The module, or None and why not."""
    try:
        import torch
    except ImportError as error:
        print(f"not beside PyTorch: {error}")
        return None
    if not torch.cuda.is_available():
        print(f"not beside PyTorch: {torch.__version__} sees no GPU")
        return None
    return torch


def measured_by(command):
    """Runs a program that measures; its exit code, and the rows that it has left for report.py."""
    with tempfile.NamedTemporaryFile() as own:
        path = os.environ.setdefault("MEASUREMENTS", own.name)
        before = os.path.getsize(path) if os.path.exists(path) else 0
        # tests/gpu/build.sh has set it.
        libraries = os.environ.get("LIBRARIES_OF_PROGRAMS", os.environ.get("LD_LIBRARY_PATH", ""))
        code = subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": libraries}).returncode
        if not os.path.exists(path):
            return code, []
        with open(path, encoding="utf-8") as file:
            file.seek(before)
            return code, rows_of(file)
