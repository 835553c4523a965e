#!/usr/bin/env python3
"""Holds all places that name the version against meson.build's.

    versions.py ROOT

They are the macros of moeccl.h, the PyTorch package, moeccl-lab, the first heading of CHANGELOG.md, what pages show of tools and of
the package, and the dump of this release's binary interface in tests/install/abi. A release is tagged as v and its version. Its heading
has a date; before that it may say "not released".
"""
import os
import re
import subprocess
import sys


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def tagged(root, version):
    listed = subprocess.run(["git", "-c", f"safe.directory={os.path.realpath(root)}", "-C", root, "tag", "--list", "v" + version], capture_output=True, text=True, check=False)
    return listed.stdout.strip() != ""


def problems(root):
    found = re.search(r"^project\(.*?\bversion: '(\d+\.\d+\.\d+)'", read(root, "meson.build"), re.DOTALL)
    if not found:
        yield "meson.build: no version like '1.2.3'"
        return
    version = found[1]
    macros = re.findall(r"^#define MOECCL_(?:MAJOR|MINOR|PATCH) (\d+)$", read(root, "include/moeccl/moeccl.h"), re.MULTILINE)
    named = [("include/moeccl/moeccl.h", ".".join(macros))]
    for path, pattern in (("src/bindings/torch/pyproject.toml", r'^version = "([^"]*)"$'),
                          ("perf/lab/__init__.py", r'^VERSION = "([^"]*)"$'),
                          ("CHANGELOG.md", r"\A(?:(?!^## ).)*^## \[([^]]*)\] - (?:\d{4}-\d\d-\d\d|not released)$"),
                          ("README.md", r"\(moeccl\) (\d+\.\d+\.\d+)"),
                          ("src/bindings/torch/README.md", r"moeccl-(\d+\.\d+\.\d+)")):
        numbers = re.findall(pattern, read(root, path), re.MULTILINE | re.DOTALL)
        named += [(path, number) for number in numbers] or [(path, "nothing like " + pattern)]
    for path, number in named:
        if number != version:
            yield f"{path}: has {number}, meson.build {version}"
    if f"\n## [{version}] - not released\n" in read(root, "CHANGELOG.md") and tagged(root, version):
        yield f"CHANGELOG.md: says \"not released\", but there is a tag v{version}"
    dump = f"tests/install/abi/{version.rpartition('.')[0]}.abi"
    if not os.path.exists(os.path.join(root, dump)):
        yield f"{dump} is missing: tests/install/abi.py dump {dump} include cc"


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = list(problems(sys.argv[1]))
    print("\n".join(found) or "all versions are that of meson.build")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
