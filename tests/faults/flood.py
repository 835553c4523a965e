#!/usr/bin/env python3
"""Sends a rank messages that it never receives, until their sender has to wait, and looks at its memory.

    flood.py NEIGHBOUR_PROGRAM [MIB]

NEIGHBOUR_PROGRAM is build/tests/faults/faults_neighbour. The messages of a case are all of one size, in a node or between
two (both are on this machine). Rank 0 has a progress thread and MIB of MOECCL_UNEXPECTED_BYTES (default: the library's 64).
Prints by how much its memory has grown. Exit code 1 where that is more than a fifth above the bound, where it is next to
nothing, or where memory still grows after a minute.
"""
import os
import subprocess
import sys
import tempfile
import time

SIZES = (0, 16, 4000)
SECONDS = 60
STEADY = 4  # figures in a row, half a second apart, after which memory grows no more


def start(program, folder, rank, between, size, mib):
    environment = {**os.environ, "MOECCL_RANK": str(rank), "MOECCL_NRANKS": "2", "MOECCL_ID_FILE": folder + "/id",
                   "MOECCL_NODE_ID": f"node{rank if between else 0}", "MOECCL_TIMEOUT": "-1",
                   "MOECCL_UNEXPECTED_BYTES": str(mib << 20)}
    return subprocess.Popen([program, "flood", str(size)], env=environment, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if rank else None, text=True)


def flood(program, between, size, mib):
    """The growth of rank 0's memory in KiB, and whether it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start(program, folder, rank, between, size, mib) for rank in range(2)]
        try:
            figures = []
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                line = ranks[0].stdout.readline()
                if not line:
                    break
                figures.append(int(line))
                # Memory is looked at before the first message comes, too.
                if len(figures) > 2 * STEADY and max(figures[-STEADY:]) - min(figures[-STEADY:]) < 64:
                    return figures[-1] - figures[0], True
            return (figures[-1] - figures[0] if figures else 0), False
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main():
    program = os.path.abspath(sys.argv[1])
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    failed = 0
    for between in (False, True):
        for size in SIZES:
            begun = time.monotonic()
            kib, ended = flood(program, between, size, mib)
            faults = [text for text, is_so in (
                ("grows by more than its bound", kib > 1.2 * mib * 1024), ("takes nothing", kib < 0.1 * mib * 1024),
                ("still grows, or has ended", not ended)) if is_so]
            failed += len(faults)
            print(f"{'between nodes' if between else 'in a node'}, {size} bytes: {kib / 1024:.1f} MiB more, bound {mib}, after "
                  f"{time.monotonic() - begun:.0f} s; {', '.join(faults) or 'no fault'}", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
