#!/usr/bin/env python3
"""Builds libmoeccl where there is no BLAS, and runs a program that only exchanges.

    without_moe_test.py --source DIR --meson CMD [--only-setup]
"""
import argparse
import os
import shlex
import subprocess
import tempfile


def run(command, **options):
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, check=True, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--source", "--meson"):
        parser.add_argument(name, required=True)
    parser.add_argument("--only-setup", action="store_true", help="see what would be built, and build nothing")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as build:
        meson = shlex.split(options.meson)
        run([*meson, "setup", build, options.source, "--buildtype", "debug"] +
            [f"-D{name}=disabled" for name in ("moe", "tests", "perf", "mpi", "cuda", "ucx")], cwd=build)
        with open(os.path.join(build, "build.ninja"), encoding="utf-8") as file:
            text = file.read().lower()
        named = [word for word in ("blas", "lapack", "moeccl-moe") if word in text]
        if named:
            raise SystemExit(f"the build still names {named}")
        if options.only_setup:
            return
        run([*meson, "compile", "-C", build, "moeccl", "alltoall"])
        run([os.path.join(build, "examples", "01_alltoall", "alltoall")])


if __name__ == "__main__":
    main()
