"""Compiles the extension against the torch and the moeccl that are installed.

libmoeccl and libmoeccl-moe are found by pkg-config, or in MOECCL_ROOT (a prefix it was installed to, or a build folder of meson's, where
MOECCL_INCLUDE names the folder that has moeccl/moeccl.h).
"""

import glob
import os
import subprocess
import sys

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension


# Of layers, and of communication.
LIBRARIES = ["moeccl-moe", "moeccl"]


def pkg_config(option):
    try:
        return subprocess.check_output(["pkg-config", option, "moeccl-moe"], text=True).split()
    except (OSError, subprocess.CalledProcessError):
        sys.exit("setup.py: libmoeccl was not found; install it, or set MOECCL_ROOT to where it is")


def find_library():
    """Returns the folders of headers and of the library."""
    root = os.environ.get("MOECCL_ROOT")
    if root:
        includes = [os.environ.get("MOECCL_INCLUDE", os.path.join(root, "include"))]
        folders = []
        for library in LIBRARIES:
            found = glob.glob(os.path.join(root, "**", f"lib{library}.so"), recursive=True)
            if not found:
                sys.exit(f"setup.py: there is no lib{library}.so in MOECCL_ROOT, {root}")
            folders.append(os.path.dirname(os.path.abspath(found[0])))
        return includes, sorted(set(folders))
    includes = [flag[2:] for flag in pkg_config("--cflags-only-I")]
    libraries = subprocess.check_output(["pkg-config", "--variable=libdir", "moeccl-moe"], text=True).split()
    return includes, libraries


includes, libraries = find_library()
setup(
    ext_modules=[
        CppExtension(
            "moeccl._C",
            sorted(glob.glob("csrc/*.cc")),
            include_dirs=includes,
            library_dirs=libraries,
            runtime_library_dirs=libraries,
            libraries=LIBRARIES,
            # Debugging information doubles the time that this takes.
            extra_compile_args=["-std=c++20", "-O1", "-g0"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
