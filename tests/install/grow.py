#!/usr/bin/env python3
"""Copies the public headers, and lets every struct that begins {size, magic, version} grow by one field.

    grow.py FOLDER HEADER ...

FOLDER is where the copies go. The field is `grown`, at the end, as a new release would add it.
"""
import os
import re
import sys

STRUCT = re.compile(r"(typedef struct \{\n  size_t size;.*?)(\n\} \w+;)", re.DOTALL)


def grown(text):
    """The text with a field more in each struct."""
    return STRUCT.sub(r"\1\n  int64_t grown;\2", text)


def main():
    target, *headers = sys.argv[1:]
    for header in headers:
        with open(header, encoding="utf-8") as file:
            text = grown(file.read())
        with open(os.path.join(target, os.path.basename(header)), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
