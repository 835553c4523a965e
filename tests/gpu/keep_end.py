#!/usr/bin/env python3
"""Passes its input on, and keeps the end of it in files, as it comes.

    COMMAND | keep_end.py FILE...

It ends with the input, or behind OVER: a process that a part has left behind may hold the input open. A file has all of a short input, and of a long one no more than 600,000 bytes, with whole lines.
"""
import os
import pathlib
import sys

from report import MOST_LOG

MOST = 2 * MOST_LOG  # then it is cut down to MOST_LOG
OVER = b"\0over\0"  # as tests/gpu/parts.sh writes it


class End:
    def __init__(self, path):
        self.path, self.size = pathlib.Path(path), 0
        self.file = self.path.open("wb", buffering=0)

    def write(self, piece):
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


def pieces():
    """The input, as it comes."""
    held = b""  # what may be the beginning of OVER
    while piece := os.read(0, 65536):
        piece, over, _ = (held + piece).partition(OVER)
        if over:
            yield piece
            return
        whole = len(piece) - next(size for size in range(len(OVER) - 1, -1, -1) if piece.endswith(OVER[:size]))
        held = piece[whole:]
        yield piece[:whole]
    yield held


def main():
    ends = [End(path) for path in sys.argv[1:]]
    for piece in pieces():
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        for end in ends:
            end.write(piece)


if __name__ == "__main__":
    main()
