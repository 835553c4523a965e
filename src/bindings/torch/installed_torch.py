"""Builds with setuptools, against the torch of the environment that the package is installed into.

pip builds in an environment of its own. Were torch among its requirements, pip would download the newest one, and compile
against that. So this looks for torch where pip's Python has its packages.
"""

import importlib.util
import sys
import sysconfig

from setuptools.build_meta import *  # noqa: F401,F403 - the functions that pip calls

for place in sysconfig.get_path("purelib"), sysconfig.get_path("platlib"):
    if place not in sys.path:
        sys.path.append(place)  # behind what pip has installed to build with
if importlib.util.find_spec("torch") is None:
    sys.exit(f"moeccl: there is no torch in {sysconfig.get_path('platlib')}; install torch first, or build where it is, "
             "with --no-build-isolation")
