#!/usr/bin/env python3
"""Prints a table of the parts of a run of tests/run_gpu.sh, and writes BUILD/results.json.

    report.py BUILD COUNT

BUILD/parts/0, 1, ... hold name, fingerprint, status, seconds, and tests passed, failed and skipped, a line each;
BUILD/parts/0.log and so on what the parts printed.
"""
import json
import pathlib
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
        log = state.with_suffix(".log")
        if name.endswith("measured") and status == "passed":
            part["output"] = log.read_text().splitlines()
        yield part


def main():
    build = pathlib.Path(sys.argv[1])
    all_parts = list(parts(build, int(sys.argv[2])))
    machine = {"gpu": said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
               "cuda": (said("nvcc", "--version").splitlines() or [""])[-1],
               "commit": said("git", "rev-parse", "HEAD")}
    (build / "results.json").write_text(json.dumps({"machine": machine, "parts": all_parts}, indent=1) + "\n")
    print(f"\n{'part':24}{'status':12}{'seconds':>8}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for part in all_parts:
        print(f"{part['name']:24}{part['status']:12}{part['seconds']:8}{part['passed']:8}{part['failed']:8}"
              f"{part['skipped']:8}")


if __name__ == "__main__":
    main()
