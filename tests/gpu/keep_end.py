#!/usr/bin/env python3
"""Passes on what a part prints, and writes it and what the part measures into files, as it comes.

    PART | keep_end.py BUILD NUMBER FOLDER

BUILD/parts/NUMBER.log and FOLDER/current.txt have the end of the input: all of a short one, and of a long one no more
than 600,000 bytes, with whole lines. Soon after a row has come to BUILD/parts/NUMBER.jsonl.new the files of report.py
have it too. FOLDER may be "". This ends with the input, or behind OVER: a process that a part has left behind may hold
the input open.
"""
import contextlib
import io
import os
import pathlib
import select
import sys
import time

import report
from report import MOST_LOG

MOST = 2 * MOST_LOG  # then it is cut down to MOST_LOG
OVER = b"\0over\0"  # as tests/gpu/parts.sh writes it


class End:
    """Where the file cannot be written the part goes on without it."""

    def __init__(self, path):
        self.path, self.size, self.file = pathlib.Path(path), 0, None
        with self.given_up():
            self.file = self.path.open("wb", buffering=0)

    @contextlib.contextmanager
    def given_up(self):
        try:
            yield
        except OSError as error:
            print(f"{self.path} is not written: {error}", file=sys.stderr)
            self.file = None

    def write(self, piece):
        with self.given_up():
            if self.file:
                self.keep(piece)

    def keep(self, piece):
        self.file.write(piece)
        self.size += len(piece)
        if self.size <= MOST:
            return
        end = self.path.read_bytes()[-MOST_LOG:]
        end = end[end.find(b"\n") + 1:]
        self.file.seek(0)
        self.file.truncate()
        self.file.write(end)
        self.size = len(end)


class Rows:
    """Of the part, in the results as they come, which takes a tenth of the time at most."""

    def __init__(self, build, number, folder):
        self.build, self.folder = build, folder
        self.path, self.size, self.next = build / f"parts/{number}.jsonl.new", 0, 0

    def look(self, over=False):
        size = self.path.stat().st_size if self.path.exists() else 0
        began = time.monotonic()
        if size == self.size or (began < self.next and not over):
            return
        with contextlib.redirect_stdout(io.StringIO()):  # all is told once, in the end
            report.after(self.build, self.folder, running=True)
        self.size, self.next = size, time.monotonic() + 10 * (time.monotonic() - began)


def pieces():
    """The input, as it comes; empty ones while nothing does."""
    held = b""  # what may be the beginning of OVER
    while True:
        if not select.select([0], [], [], 0.5)[0]:
            yield b""
            continue
        piece = os.read(0, 65536)
        piece, over, _ = (held + piece).partition(OVER) if piece else (held, True, b"")
        if over:
            yield piece
            return
        whole = len(piece) - next(size for size in range(len(OVER) - 1, -1, -1) if piece.endswith(OVER[:size]))
        held = piece[whole:]
        yield piece[:whole]


def main():
    build, number, folder = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    ends = [End(build / f"parts/{number}.log"), *([End(pathlib.Path(folder) / "current.txt")] if folder else [])]
    rows = Rows(build, number, folder)
    for piece in pieces():
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        for end in ends:
            end.write(piece)
        rows.look()
    rows.look(over=True)


if __name__ == "__main__":
    main()
