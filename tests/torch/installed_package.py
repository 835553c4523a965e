"""Looks at the package as pip has installed it.

    python tests/torch/installed_package.py GUIDE

Functions that GUIDE calls in one line must be there.
"""

import importlib.metadata
import os
import re
import subprocess
import sys

import moeccl.torch
from moeccl import _C

folder = os.path.dirname(_C.__file__)
files = [name for name in sorted(os.listdir(folder)) if ".so" in name]
assert {name.partition(".")[0] for name in files} == {"_C", "libmoeccl"}, files
for name in files:
    printed = subprocess.check_output(["readelf", "--dynamic", os.path.join(folder, name)], text=True, env={"LC_ALL": "C", **os.environ})
    places = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", printed)
    # Nothing of the machine that has built it.
    assert all(place.startswith("$ORIGIN") for each in places for place in each.split(":")), (name, places)
with open("/proc/self/maps", encoding="utf-8") as file:
    loaded = {line.split()[-1] for line in file if "libmoeccl" in line}
assert loaded == {os.path.join(folder, name) for name in files if name.startswith("lib")}, loaded

assert moeccl.__version__ == importlib.metadata.version("moeccl")
print(f"moeccl {moeccl.__version__} has its own {', '.join(files)}")

with open(sys.argv[1], encoding="utf-8") as file:
    guide = file.read()
for name in set(re.findall(r"moeccl\.torch\.(\w+)\(", guide)):
    assert hasattr(moeccl.torch, name), name
selects = re.findall(r"`(moeccl\.torch\.select\(.*?\))`", guide)
assert selects, "the guide asks select for nothing"
for select in selects:
    print(f"{select} gives {eval(select)}")
