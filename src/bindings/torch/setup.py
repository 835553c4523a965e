"""Compiles the extension against the torch that is installed, and the library that native_library.py finds or builds."""

import glob
import os

import native_library
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

EXTENSION = "moeccl._C"


class Build(BuildExtension):
    """Has the library first, and puts it beside the extension."""

    def run(self):
        library = native_library.find(self.distribution.get_version(), os.path.abspath(os.path.join("build", "library")))
        for extension in self.extensions:
            extension.include_dirs.append(library.include)
            extension.library_dirs.append(os.path.dirname(library.path))
        super().run()
        native_library.place(library, os.path.dirname(self.get_ext_fullpath(EXTENSION)))


setup(
    ext_modules=[
        CppExtension(
            EXTENSION,
            sorted(glob.glob("csrc/*.cc")),
            libraries=[native_library.NAME],
            # Debugging information doubles the time that this takes.
            extra_compile_args=["-std=c++20", "-O1", "-g0"],
            # The library lies beside it, wherever that is.
            extra_link_args=["-Wl,-rpath,$ORIGIN"],
        )
    ],
    cmdclass={"build_ext": Build},
)
