#!/usr/bin/env python3
"""Installs the build into a temporary folder, then builds and runs a C program against it there.

    install_test.py --build DIR --source DIR --meson CMD --cc CC --pkg-config CMD

The program finds moeccl through pkg-config alone, as a user's does. Every header of include/moeccl
must have been installed.
"""
import argparse
import os
import shlex
import subprocess
import tempfile


def run(command, **variables):
    print("$ " + shlex.join(command), flush=True)
    subprocess.run(command, check=True, env={**os.environ, **variables})


def find(root, name):
    """The one file of that name below root."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) if name in names]
    if len(found) != 1:
        raise SystemExit(f"{name} was installed {len(found)} times: {found}")
    return found[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--build", "--source", "--meson", "--cc", "--pkg-config"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as stage:
        run([*shlex.split(options.meson), "install", "-C", options.build, "--no-rebuild", "--quiet",
             "--destdir", stage])
        expected = set(os.listdir(os.path.join(options.source, "include", "moeccl")))
        headers = os.path.dirname(find(stage, "moeccl.h"))
        if set(os.listdir(headers)) != expected:
            raise SystemExit(f"installed are {sorted(os.listdir(headers))} instead of {sorted(expected)}: "
                             "see include/meson.build")

        for package, source in (("moeccl", "consumer.c"), ("moeccl-moe", "every_struct.c")):
            pc = find(stage, f"{package}.pc")
            flags = subprocess.run([options.pkg_config, "--cflags", "--libs", package], check=True,
                                   capture_output=True, text=True,
                                   env={**os.environ, "PKG_CONFIG_PATH": os.path.dirname(pc),
                                        "PKG_CONFIG_SYSROOT_DIR": stage}).stdout
            print(f"pkg-config: {flags.strip()}")
            program = os.path.join(stage, package)
            run([*shlex.split(options.cc), "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
                 os.path.join(options.source, "tests", "install", source), "-o", program, *shlex.split(flags)])
            run([program], LD_LIBRARY_PATH=os.path.dirname(find(stage, f"lib{package}.so")))


if __name__ == "__main__":
    main()
