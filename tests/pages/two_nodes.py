#!/usr/bin/env python3
"""Starts PyTorch on two nodes of an emulated cluster by README.md's commands, and compares what rank 0 prints with README.md.

    two_nodes.py ROOT PYTHON

PYTHON has torch and moeccl. The program is train.py of the guide of the PyTorch package. Losses are compared to a tenth, because
ranks add in another order. Exit code 77 where this machine permits no emulated cluster.
"""
import os
import re
import subprocess
import sys
import tempfile

from pages_test import blocks, commands

NAME = f"two-nodes-{os.getpid()}"


def alike(line, printed):
    number = r"\d+\.\d+"
    return (re.sub(number, "#", line) == re.sub(number, "#", printed)
            and all(abs(float(one) - float(other)) < 0.1 for one, other in zip(re.findall(number, line), re.findall(number, printed))))


def main():
    root, python = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    lab = os.path.join(root, "perf", "moeccl-lab")
    with open(os.path.join(root, "README.md"), encoding="utf-8") as file:
        found = list(blocks(file.read()))
    starts, said = next((commands(block), output) for (_, block), (_, output) in zip(found, found[1:])
                        if block[0].startswith("torchrun "))
    starts = [re.sub(r" +#.*", "", start).replace("HOST0", "node0") for start in starts if "--nnodes 2 " in start]
    if len(starts) != 2:
        sys.exit("README.md no longer starts PyTorch on two nodes")
    up = subprocess.run([lab, "up", "--name", NAME, "--nodes", "2x4", "--uplink", "1gbit"], check=False)
    if up.returncode:
        sys.exit(77 if up.returncode == 3 else 1)
    path = os.path.dirname(python) + os.pathsep + os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(root, "examples", "torch", "train.py"), os.path.join(folder, "train.py"))
        try:
            jobs = [subprocess.Popen([lab, "exec", "--name", NAME, f"node{node}", "--", "sh", "-c", start], cwd=folder,
                                     env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True)
                    for node, start in enumerate(starts)]
            printed = jobs[0].communicate(timeout=600)[0].splitlines()
            codes = [job.wait(timeout=60) for job in jobs]
        finally:
            subprocess.run([lab, "down", "--name", NAME], check=False)
    if codes != [0, 0]:
        sys.exit(f"torchrun ends with {codes}")
    for line in said:
        if not any(alike(line, each) for each in printed):
            sys.exit(f"{starts[0]} does not print {line!r} but\n" + "\n".join(printed))
    print("PyTorch starts on two nodes as README.md says")


if __name__ == "__main__":
    main()
