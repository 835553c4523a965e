#!/usr/bin/env python3
"""Holds the binary interface of today's headers against those of releases.

    abi.py dump FILE.abi HEADERS CC    writes the interface of HEADERS (a folder with moeccl/): done once, at a release
    abi.py check FOLDER HEADERS CC     compares HEADERS with each FILE.abi in FOLDER, and shows that a break is noticed

An interface is what libabigail (Debian: abigail-tools) reads of a library that defines each declared function and does
nothing: functions, their parameters, and the layout of every struct and enum behind these. The exports test holds the
real libraries to the same declarations. Structs that begin with their size may grow at their end; nothing else may change.
Exits with 77, which skips a test, where libabigail is missing.
"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HEADERS = ("moeccl", "model", "route", "moe")
DECLARATION = re.compile(r"^MOECCL_API ([^;]*);", re.MULTILINE)


def dump(target, headers, compiler):
    """Writes the interface of `headers` to `target`."""
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source, library = os.path.join(scratch, "stubs.c"), os.path.join(scratch, "stubs.so")
        with open(source, "w", encoding="utf-8") as file:
            for name in HEADERS:
                path = os.path.join(headers, "moeccl", name + ".h")
                with open(path, encoding="utf-8") as header:
                    functions = DECLARATION.findall(header.read())
                if not functions:
                    raise SystemExit(f"{path} declares no function")
                file.write(f"#include <moeccl/{name}.h>\n")
                file.writelines(f"{function} {{ return 0; }}\n" for function in functions)
        # By names without a folder, which the dump would have.
        subprocess.run([*shlex.split(compiler), "-std=c99", "-g", "-shared", "-fPIC", "-w", "-I", os.path.abspath(headers),
                        os.path.basename(source), "-o", library], cwd=scratch, check=True)
        subprocess.run(["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file", target, library], check=True)


def compare(released, now):
    """(whether programs of `released` run with `now`, what differs)"""
    done = subprocess.run(["abidiff", "--suppressions", os.path.join(os.path.dirname(__file__), "abi.ini"), released, now],
                          capture_output=True, text=True)
    if done.returncode & 3:
        raise SystemExit(f"abidiff failed: {done.stdout}{done.stderr}")
    return done.returncode == 0, done.stdout


def change(headers, scratch, name, old, new):
    """A copy of the headers in which something is changed, once."""
    folder = os.path.join(scratch, name)
    shutil.copytree(headers, folder)
    path = os.path.join(folder, "moeccl", "moeccl.h")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    changed = re.sub(old, new, text, count=1, flags=re.DOTALL)
    if changed == text:
        raise SystemExit(f"moeccl.h has nothing like {old}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(changed)
    return folder


def check(folder, headers, compiler):
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        now = os.path.join(scratch, "now.abi")
        dump(now, headers, compiler)
        for released in sorted(glob.glob(os.path.join(folder, "*.abi"))):
            same, text = compare(released, now)
            print(f"{os.path.basename(released)}: {'programs of this release run' if same else text}")
            failed |= not same
        struct = r"(typedef struct \{\n  size_t size;[^}]*?)(\n\} moecclConfig_t;)"
        for what, runs, old, new in (
                ("a struct that grew at its end", True, struct, r"\1\n  int grown;\2"),
                ("a struct with a field in front", False, r"typedef struct \{\n  size_t size;([^}]*\} moecclConfig_t;)",
                 r"typedef struct {\n  size_t size; long before;\1"),
                ("the unique id, which has no size, that grew", False, r"(typedef struct \{\n[^}]*?)(\n\} moecclUniqueId;)",
                 r"\1\n  int grown;\2"),
                ("a function that is gone", False, r"MOECCL_API [^;]*moecclCommCount\([^;]*;", ""),
                ("a parameter of another type", False, r"(moecclCommCount\([^;]*)int\*", r"\1long*")):
            changed = os.path.join(scratch, "changed.abi")
            dump(changed, change(headers, scratch, what.replace(" ", "-"), old, new), compiler)
            same, text = compare(now, changed)
            if same != runs:
                print(f"{what} {'is noticed as a break' if runs else 'is not noticed'}\n{text}")
                failed = True
    return failed


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in ("dump", "check"):
        raise SystemExit(__doc__)
    if not shutil.which("abidw"):
        print("abidw is missing (Debian: abigail-tools)")
        sys.exit(77)
    sys.exit(dump(*sys.argv[2:]) if sys.argv[1] == "dump" else check(*sys.argv[2:]))


if __name__ == "__main__":
    main()
