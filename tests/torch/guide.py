"""Runs what the guide of the PyTorch package has one run, and compares what it prints with what the guide says.

    python tests/torch/guide.py GUIDE
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

PER_CENT = 15  # by which a number may be off, or by the last digit


def blocks(lines):
    """Indented blocks, each a list of lines."""
    block = []
    for line in [*lines, ""]:
        if line.startswith("    "):
            block.append(line[4:])
        elif block:
            yield block
            block = []


def alike(line, printed):
    number = r"\d+(?:\.\d+)?"
    if re.sub(number, "#", line) != re.sub(number, "#", printed):
        return False
    for one, other in zip(re.findall(number, line), re.findall(number, printed)):
        digit = 10.0 ** -len(one.partition(".")[2])
        if abs(float(one) - float(other)) > max(float(one) * PER_CENT / 100, digit * 1.01 if "." in one else 0):
            return False
    return True


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    programs = re.findall(r"^`(\w+\.py)`[^\n]*:\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder = os.path.dirname(os.path.abspath(sys.executable))
    checked = 0
    with tempfile.TemporaryDirectory() as directory:
        for name, program in programs:
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(program)
        outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        expected = list(blocks(outside.splitlines()))
        for command, printed in zip(expected, expected[1:]):
            if not command[0].startswith("torchrun "):
                continue
            done = subprocess.run([os.path.join(folder, "torchrun"), "--standalone", *shlex.split(command[0])[1:]],
                                  cwd=directory, stdout=subprocess.PIPE, text=True, timeout=600)
            lines = done.stdout.splitlines()
            for line in printed:
                if not any(alike(line, each) for each in lines):
                    sys.exit(f"{command[0]} does not print {line!r} but\n{done.stdout}")
            if done.returncode != 0:
                sys.exit(f"{command[0]} ends with {done.returncode}")
            checked += len(printed)
            print(f"{command[0]} prints what the guide says", flush=True)
    # One-liners that are told must be there.
    import moeccl.torch
    for name in set(re.findall(r"moeccl\.torch\.(\w+)\(", text)):
        assert hasattr(moeccl.torch, name), name
    select = re.search(r"`(moeccl\.torch\.select\(.*?\))`", text)[1]
    print(f"{select} gives {eval(select, {'moeccl': moeccl})}")
    if not programs or not checked:
        sys.exit("the guide has no program, or says of none what it prints")


if __name__ == "__main__":
    main()
