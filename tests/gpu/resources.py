#!/usr/bin/env python3
"""Prints what ptxas gives each CUDA kernel: registers, shared memory, stack. Fails where one spills registers.

    resources.py NVCC SOURCE [ARGUMENT...]

compiles the source with these arguments of nvcc, for all of their architectures, and keeps nothing.
"""

import re
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels(report):
    """(mangled name, architecture, registers, shared bytes, stack bytes, spilled bytes) of each kernel."""
    entry = stack = None
    for line in report.splitlines():
        if found := ENTRY.search(line):
            entry, stack = found.groups(), None
        # Functions that kernels call have lines of their own behind the kernel's.
        elif entry and not stack and (found := STACK.search(line)):
            stack = [int(number) for number in found.groups()]
        elif entry and stack and (found := USED.search(line)):
            shared = SHARED.search(line)
            yield (*entry, int(found[1]), int(shared[1]) if shared else 0, stack[0], stack[1] + stack[2])
            entry = None


# As kernels/small_float.h defines them.
FORMATS = {"unsigned short, 5": "Float16", "unsigned short, 8": "Bfloat16", "unsigned char, 4": "Float8e4m3",
           "unsigned char, 5": "Float8e5m2"}


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = re.sub(r"moeccl::|cuda::|gates::|\(anonymous namespace\)::|std::", "", done.stdout)
    short = re.sub(r"SmallFloat<(\w+ \w+, \d), \d+, \w+, \w+>", lambda found: FORMATS[found[1]], short)
    return [re.sub(r"^void ", "", name) for name in short.splitlines()]


def compiled(nvcc, source, arguments):
    """kernels() of a source, by name."""
    with tempfile.NamedTemporaryFile(suffix=".o") as target:
        done = subprocess.run([nvcc, *arguments, "-Xptxas=-v", "-c", source, "-o", target.name],
                              capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = sorted(kernels(done.stderr + done.stdout))
    if not found:
        sys.exit(f"{source}: ptxas names no kernel")
    return [(name, *kernel[1:]) for name, kernel in zip(demangled(kernel[0] for kernel in found), found)]


def main():
    nvcc, source, *arguments = sys.argv[1:]
    found, spills = compiled(nvcc, source, arguments), 0
    print(f"{source}\n{'':8}{'registers':>10}{'shared':>8}{'stack':>7}{'spilled':>9}")
    for name, architecture, registers, shared, stack, spilled in found:
        spills += spilled > 0
        print(f"{architecture:8}{registers:10}{shared:8}{stack:7}{spilled:9}  {name[:110]}")
    print(f"{len(found)} kernels, {spills} spill")
    sys.exit(1 if spills else 0)


if __name__ == "__main__":
    main()
