#!/usr/bin/env python3
"""Holds what 06_survive prints against what it must: test_survive.py LAB PROGRAM NODES"""
import re
import subprocess
import sys
import tempfile

lab, program, nodes = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    # The lab stops all ranks when one fails.
    done = subprocess.run([lab, "run", "--emulate", nodes, "--no-prefix", "--", "sh", "-c", '"$@"; true', "sh", program,
                           folder], text=True, timeout=100,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
print(done.stdout)
per_node = nodes.split("x")
ranks = int(per_node[0]) * int(per_node[1]) if len(per_node) == 2 else sum(map(int, nodes.split(",")))
victim = ranks - 1
named = re.findall(rf"^rank \d+: .*rank {victim} on \S+ is dead", done.stdout, re.MULTILINE)
moved = re.findall(rf"^now rank \d+ of {victim}, without {victim}; goes on from step 40$", done.stdout, re.MULTILINE)
ends = re.findall(rf"^rank \d+ of {victim}: loss (\S+) after 120 steps$", done.stdout, re.MULTILINE)
if not len(named) == len(moved) == len(ends) == victim or not all(float(loss) < 1e-3 for loss in ends):
    sys.exit(f"{len(named)} ranks named the dead one, {len(moved)} went on, {len(ends)} came to the end, of {victim}")
