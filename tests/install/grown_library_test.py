#!/usr/bin/env python3
"""Builds the library as a next release might be, every struct grown by one field, and runs an older program on it.

    grown_library_test.py --source DIR --headers DIR --meson CMD --cc CC

The program is every_struct.c, built against --headers: those of a release, or today's.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile

import grow

# What a developer changes beside the header: the struct's kind names its last field (src/base/structs.h).
KIND = re.compile(r"(MOECCL_END_OF\(\s*(\w+),\s*\w+\),\s*MOECCL_END_OF\(\s*\w+,\s*)\w+(\)\};)")


def run(command, **options):
    print("$ " + shlex.join(command), flush=True)
    subprocess.run(command, check=True, **options)


def rewrite(path, change):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    changed = change(text)
    if changed != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(changed)
    return changed != text


def grow_tree(tree):
    include = os.path.join(tree, "include", "moeccl")
    headers = sum(rewrite(os.path.join(include, name), grow.grown) for name in os.listdir(include))
    sources = 0
    for folder, _, names in os.walk(os.path.join(tree, "src")):
        for name in names:
            if name.endswith((".cc", ".h")):
                sources += rewrite(os.path.join(folder, name), lambda text: KIND.sub(r"\1grown\3", text))
    if not headers or not sources:
        raise SystemExit(f"{headers} headers and {sources} sources have grown")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--source", "--headers", "--meson", "--cc"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        tree, build = os.path.join(scratch, "tree"), os.path.join(scratch, "build")
        shutil.copytree(options.source, tree, ignore=shutil.ignore_patterns(".*", "build*", "results"))
        grow_tree(tree)
        meson = shlex.split(options.meson)
        run([*meson, "setup", build, tree, "--buildtype", "debug"] +
            [f"-D{name}=disabled" for name in ("tests", "perf", "mpi", "cuda", "ucx")], cwd=scratch)
        run([*meson, "compile", "-C", build, "moeccl", "moeccl-moe"])
        library, layers = os.path.join(build, "src", "api"), os.path.join(build, "src", "moe")
        program = os.path.join(scratch, "every_struct")
        run([*shlex.split(options.cc), "-std=c99", "-I", options.headers,
             os.path.join(options.source, "tests", "install", "every_struct.c"), "-o", program, "-L", layers, "-lmoeccl-moe",
             "-L", library, "-lmoeccl", f"-Wl,-rpath,{library}:{layers}"])
        run([program])


if __name__ == "__main__":
    main()
