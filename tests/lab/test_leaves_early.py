#!/usr/bin/env python3
"""Runs leaves_early over a slow uplink: test_leaves_early.py PROGRAM

Exit code 77 where this machine does not permit an emulated cluster.
"""
import os
import subprocess
import sys
import tempfile

LAB = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "perf", "moeccl-lab")


def main():
    with tempfile.TemporaryDirectory() as runtime:
        def lab(*arguments):
            return subprocess.run([LAB, *arguments], timeout=100, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "XDG_RUNTIME_DIR": runtime}).returncode
        if status := lab("up", "--nodes", "2", "--ranks-per-node", "1", "--uplink", "100mbit"):
            return 77 if status == 3 else 1
        try:
            return lab("run", "--", sys.argv[1])
        finally:
            lab("down")


if __name__ == "__main__":
    sys.exit(main())
