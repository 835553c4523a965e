"""Builds with setuptools, against the torch of the environment that the package is installed into.

pip builds in an environment of its own. Were torch among its requirements, pip would download the newest one, and compile
against that. So this looks for torch where pip's Python has its packages.
"""

import importlib.util
import os
import sys
import sysconfig

import native_library
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F401,F403 - the functions that pip calls


def version():
    """The package's, which is the library's."""
    with open(os.path.join(native_library.HERE, "pyproject.toml"), encoding="utf-8") as file:
        return next(line.split('"')[1] for line in file if line.startswith("version = "))


def get_requires_for_build_wheel(config_settings=None):
    """What pip installs to build with: also what builds the library, where that is to be built."""
    tools = ["meson>=1.0", "ninja"] if native_library.must_be_built(version()) else []
    return [*build_meta.get_requires_for_build_wheel(config_settings), *tools]


get_requires_for_build_editable = get_requires_for_build_wheel

for place in sysconfig.get_path("purelib"), sysconfig.get_path("platlib"):
    if place not in sys.path:
        sys.path.append(place)  # behind what pip has installed to build with
if importlib.util.find_spec("torch") is None:
    sys.exit(f"moeccl: there is no torch in {sysconfig.get_path('platlib')}; install torch first, or build where it is, "
             "with --no-build-isolation")
