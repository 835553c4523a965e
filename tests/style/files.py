#!/usr/bin/env python3
"""Holds the repository's source files against what each owes its reader.

    files.py ROOT

C, C++ and CUDA files begin with a comment that says what they are for. No two files of the library have the same
name, but for those in algorithms/: an algorithm is named after itself there, in the folder of its collective.
"""
import collections
import os
import re
import sys

from source_files import repository_files

SOURCE = re.compile(r"\.(h|hpp|c|cc|cu|cuh)$")
# A name of the public API is the user's, and a binding is a package of its own.
LIBRARY = re.compile(r"(algorithms|kernels|src/(?!bindings/))")


def without_purpose(root, paths):
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            if not re.match(r"//[^\S\n]*\S|/\*+\s*\S", file.read(200)):
                yield f"{path} does not begin with a comment that says what it is for"


def doubled_names(paths):
    named = collections.defaultdict(list)
    for path in paths:
        if LIBRARY.match(path):
            named[os.path.basename(path)].append(path)
    for like in named.values():
        if len(like) > 1 and not all(path.startswith("algorithms/") for path in like):
            yield f"{' and '.join(like)} have the same name"


def problems(root):
    paths = [path for path in repository_files(root) if SOURCE.search(path)]
    if not paths:
        raise SystemExit(f"{root} holds no source file")
    return [*without_purpose(root, paths), *doubled_names(paths)]


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = problems(sys.argv[1])
    print("\n".join(found) or "no problem")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
