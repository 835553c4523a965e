#!/usr/bin/env python3
"""Prints a table of the parts of a run of tests/run_gpu.sh, and writes BUILD/results.json.

    report.py BUILD COUNT NVCC NCCL SANITIZER

BUILD/parts/0, 1, ... hold name, fingerprint, status, seconds, and tests passed, failed and skipped, a line each;
BUILD/parts/0.log and so on what the parts printed, 0.jsonl what they measured, an object of JSON a line. NVCC and
SANITIZER are programs and NCCL is its folder; "" where there is none.
"""
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys


def said(*command):
    """What a command prints; "" where there is none."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def parts(build, count):
    for number in range(count):
        state = build / "parts" / str(number)
        name, _, status, seconds, passed, failed, skipped = state.read_text().splitlines()
        part = {"name": name, "status": status, "seconds": int(seconds), "passed": int(passed),
                "failed": int(failed), "skipped": int(skipped)}
        log, numbers = state.with_suffix(".log"), state.with_suffix(".jsonl")
        part["numbers"] = []
        if status == "passed":
            if numbers.is_file():
                part["numbers"] = [json.loads(line) for line in numbers.read_text().splitlines()]
            if name.endswith("measured"):
                part["output"] = log.read_text().splitlines()
        yield part


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


def versions(nvcc, nccl, sanitizer):
    torch = said(sys.executable, "-c", "import torch; print(torch.__version__)")
    return {"commit": said("git", "rev-parse", "HEAD"), "cuda": (said(nvcc, "--version").splitlines() or [""])[-1],
            "nccl": version_of_nccl(nccl), "compiler": (said("g++", "--version").splitlines() or [""])[0],
            "compute-sanitizer": (said(sanitizer, "--version").splitlines() or [""])[-1] if sanitizer else "",
            "python": platform.python_version(), "torch": torch}


def main():
    build = pathlib.Path(sys.argv[1])
    all_parts = list(parts(build, int(sys.argv[2])))
    results = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "machine": machine(),
               "versions": versions(*sys.argv[3:6]), "parts": all_parts}
    (build / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{'part':24}{'status':12}{'seconds':>8}{'passed':>8}{'failed':>8}{'skipped':>8}{'numbers':>9}")
    for part in all_parts:
        print(f"{part['name']:24}{part['status']:12}{part['seconds']:8}{part['passed']:8}{part['failed']:8}"
              f"{part['skipped']:8}{len(part['numbers']):9}")


if __name__ == "__main__":
    main()
