#!/usr/bin/env python3
"""Writes what a run of tests/run_gpu.sh has found so far.

    report.py begin BUILD NVCC NCCL SANITIZER RESULTS    asks for the machine and versions
    report.py libraries BUILD                            prints those versions on which results depend
    report.py after BUILD FOLDER                         writes the files, and copies them to FOLDER
    report.py table BUILD                                prints the bars, and a table of the parts

BUILD/parts/names has the parts' names, a line each. BUILD/parts/0, 1, ... hold name, fingerprint, status, seconds, and
tests passed, failed and skipped, a line each; BUILD/parts/0.log and so on what the parts printed, 0.log.failed what one
printed that failed and has not run to its end since, 0.jsonl what they measured, an object of JSON a line, and 0.jsonl.new
what one that is running has measured so far. NVCC and SANITIZER are programs and NCCL is its folder. RESULTS is the
results.json of an earlier run, from which the parts come back. "" where there is none.
"""
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import traceback

import bars
from measured import rows_of

MOST_LOG = 300_000  # bytes that are kept of what a part prints
MOST_NUMBERS = 200_000  # and of what it measures
MOST_FILE = 15 << 20  # of each file; above 16 MiB none comes back from a machine that is lent


def said(*command):
    """What a command prints; "" where there is none, or it does not end."""
    if not shutil.which(command[0]):
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except subprocess.TimeoutExpired:
        return ""


def printed(log):
    """The end of what a part printed."""
    return log.read_bytes()[-MOST_LOG:].decode(errors="replace") if log.is_file() else ""


def measured(numbers):
    """The first rows of what a part has measured."""
    if not numbers.is_file():
        return []
    with numbers.open(errors="replace") as file:
        lines = file.read(MOST_NUMBERS + 1).splitlines()
    if numbers.stat().st_size > MOST_NUMBERS:
        print(f"{numbers}: no more than {MOST_NUMBERS} bytes of it are kept")
        lines.pop()  # half a line
    return rows_of(lines)


def parts(build):
    """As they are, and were left where one is in its middle or was killed there."""
    for number, name in enumerate((build / "parts/names").read_text().splitlines()):
        state = build / "parts" / str(number)
        if not state.is_file():
            yield {"name": name, "fingerprint": "", "status": "unfinished", "seconds": 0, "passed": 0, "failed": 0,
                   "skipped": 0, "numbers": [], "output": []}
            continue
        _, fingerprint, status, *counts = state.read_text().splitlines()
        part = {"name": name, "fingerprint": fingerprint, "status": status}
        part |= zip(("seconds", "passed", "failed", "skipped"), map(int, counts))
        part["numbers"] = max((measured(state.with_suffix(end)) for end in (".jsonl", ".jsonl.new")), key=len)
        part["output"] = [line for end in (".log.failed", ".log") for line in printed(state.with_suffix(end)).splitlines()]
        yield part


def restore(build, results):
    """The parts of an earlier run that are parts of this one too, as that one has left them, but for those that have passed
    here since. The lists may differ, as where one machine has NCCL and the other has not."""
    numbers = {}
    for number, name in enumerate((build / "parts/names").read_text().splitlines()):
        numbers.setdefault(name, []).append(number)
    for part in json.loads(pathlib.Path(results).read_text())["parts"]:
        if not numbers.get(part["name"]):
            continue
        state = build / "parts" / str(numbers[part["name"]].pop(0))
        passed = [part["name"], part["fingerprint"], "passed"]
        if not part["fingerprint"] or (state.is_file() and state.read_text().splitlines()[:3] == passed):
            continue
        counts = [part[field] for field in ("seconds", "passed", "failed", "skipped")]
        state.with_suffix(".log").write_text("\n".join(part["output"]) + "\n")
        state.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in part["numbers"]))
        for end in (".log.failed", ".jsonl.new"):
            state.with_suffix(end).unlink(missing_ok=True)
        # Last, or a part would have passed without its figures where the rest cannot be read.
        replace(state, "".join(f"{line}\n" for line in (part["name"], part["fingerprint"], part["status"], *counts)))


def version_of_nccl(folder):
    """"2.28.9", as its header says."""
    header = pathlib.Path(folder) / "include/nccl.h"
    if not folder or not header.is_file():
        return ""
    text = header.read_text(errors="replace")
    found = [re.search(rf"#define NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(match.group(1) for match in found if match)


def machine():
    processors = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")]
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return {"gpu": said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
            "processor": processors[0] if processors else platform.machine(), "processors": os.cpu_count(),
            "memory_gib": round(int(memory.group(1)) / 2**20, 1), "kernel": platform.release()}


def version_of_torch():
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions(nvcc, nccl, sanitizer):
    return {"commit": said("git", "rev-parse", "HEAD"), "cuda": (said(nvcc, "--version").splitlines() or [""])[-1],
            "nccl": version_of_nccl(nccl), "compiler": (said("g++", "--version").splitlines() or [""])[0],
            "compute-sanitizer": (said(sanitizer, "--version").splitlines() or [""])[-1] if sanitizer else "",
            "python": platform.python_version(), "torch": version_of_torch()}


def begin(build, nvcc, nccl, sanitizer, results):
    where = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
             "versions": versions(nvcc, nccl, sanitizer)}
    (build / "machine.json").write_text(json.dumps(where))
    if results:
        try:
            restore(build, results)
        except (KeyError, TypeError, ValueError) as error:
            # The time of a lent GPU runs: what cannot be read is measured anew.
            print(f"{results} cannot be read as an earlier run's results.json ({type(error).__name__}: {error}); "
                  "parts that it should have are run again")


def libraries(build):
    versions_here = json.loads((build / "machine.json").read_text())["versions"]
    print(*(versions_here[name] for name in ("cuda", "nccl", "torch")))


def replace(path, text):
    """So that no half of it is left where the run is killed."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def shown(page, results):
    """A page of bars. What is odd in the figures of one part must not cost the results of all."""
    try:
        return page(results)
    except Exception:
        return traceback.format_exc()


def log(results):
    return "".join(f"==== {part['name']}: {part['status']}\n" + "\n".join(part["output"]) + "\n"
                   for part in results["parts"] if part["output"])


def fitting(write, results):
    """What `write` makes of the results. Where that is too much, parts' output loses its beginning, half and half."""
    most = max((len(part["output"]) for part in results["parts"]), default=0)
    while True:
        shorter = [part | {"output": part["output"][-most:] if most else []} for part in results["parts"]]
        text = write(results | {"parts": shorter})
        if most == 0 or len(text.encode()) <= MOST_FILE:
            return text
        most //= 2


def after(build, folder, running=False):
    """running: a part is in its middle, and writes what it prints to current.txt."""
    results = json.loads((build / "machine.json").read_text()) | {"parts": list(parts(build))}
    files = {"results.json": fitting(lambda those: json.dumps(those, indent=1) + "\n", results),
             "bars.txt": shown(bars.page, results), "log.txt": fitting(log, results)}
    for name, text in files.items():
        replace(build / name, text)
    if folder:
        copy(files, pathlib.Path(folder), running)


def copy(files, folder, running):
    """The run goes on without its folder: what it has found so far is in the build."""
    try:
        for name, text in files.items():
            replace(folder / name, text)
        if not running:
            (folder / "current.txt").unlink(missing_ok=True)
    except OSError as error:
        print(f"no results are copied to {folder}: {error}")


def table(build):
    print("\n" + shown(bars.summary, json.loads((build / "results.json").read_text())))
    print(f"{'part':26}{'status':12}{'seconds':>8}{'passed':>8}{'failed':>8}{'skipped':>8}{'numbers':>9}")
    for part in parts(build):
        print(f"{part['name']:26}{part['status']:12}{part['seconds']:8}{part['passed']:8}{part['failed']:8}"
              f"{part['skipped']:8}{len(part['numbers']):9}")


if __name__ == "__main__":
    {"begin": begin, "libraries": libraries, "after": after, "table": table}[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
