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


# What bars.py counts on. Each of these fields, which name a row's kind, asks for others.
KINDS = {"kernel": ("us",), "rival": ("by", "us"), "layer": ("by", "forward_ms", "tokens", "experts"), "ceiling": ("rate",),
         "executor_us": ("executor_host_us", "by_hand_host_us", "lanes", "bytes")}
# Where a row has them:
TEXTS = ("kernel", "rival", "layer", "ceiling", "by")
NUMBERS = ("bytes", "flops", "executor_host_us", "by_hand_host_us")
TIMES = ("us", "copy_us", "forward_ms", "both_ms", "rate")  # above 0


def is_row(row):
    """Whether bars.py can take it: it has what its kind asks for, texts and numbers are such, and none is a list."""
    def every(names, types):
        return all(isinstance(row[name], types) for name in names if name in row)

    return (isinstance(row, dict) and every(row, (str, int, float)) and every(TEXTS, str) and
            every(NUMBERS + TIMES, (int, float)) and all(row[time] > 0 for time in TIMES if time in row) and
            all(math.isfinite(value) for value in row.values() if isinstance(value, float)) and
            all(name in row for kind, needed in KINDS.items() if kind in row for name in needed))


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
        if torch.cuda.is_available():
            print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}", flush=True)
            return torch
        print(f"not beside PyTorch: {torch.__version__} sees no GPU")
    except Exception as error:  # not installed, or it does not fit this machine's libraries or driver
        print(f"not beside PyTorch: {first_line(error)}")
    return None


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
