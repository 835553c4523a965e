"""Where setup.py has libmoeccl from, a copy of which becomes part of the package:

MOECCL_ROOT     a prefix that it was installed to, or a build folder of meson's, where MOECCL_INCLUDE names the folder that has
                moeccl/moeccl.h; both are absolute
pkg-config      else, an installation of this version
meson           else, the sources that lie beside: an sdist's, or the repository's. MOECCL_MESON_OPTIONS has more options for them,
                as in "-Ducx=disabled".
"""

import glob
import os
import shlex
import subprocess
import sys

NAME = "moeccl"
HERE = os.path.dirname(os.path.abspath(__file__))


class Library:
    """The folder of its headers, its file, and the name by which programs load that."""

    def __init__(self, include, path):
        self.include = include
        self.path = path
        self.soname = dynamic(path, "SONAME")


def source_folder():
    """The folder of the library's own meson.build, or None: beside this file in an sdist, above it in the repository."""
    for folder in os.path.join(HERE, "library"), os.path.join(HERE, "..", "..", ".."):
        if os.path.exists(os.path.join(folder, "meson_options.txt")):
            return os.path.realpath(folder)
    return None


def pkg_config(*arguments):
    """What it prints, or None where it fails or is not there."""
    try:
        return subprocess.check_output(["pkg-config", *arguments], text=True, stderr=subprocess.DEVNULL).split()
    except (OSError, subprocess.CalledProcessError):
        return None


def must_be_built(version):
    """Whether neither of the others serves."""
    return not os.environ.get("MOECCL_ROOT") and pkg_config("--modversion", f"{NAME} = {version}") is None


def dynamic(path, tag):
    """What a library's dynamic section says under this tag, or None."""
    printed = subprocess.check_output(["readelf", "--dynamic", path], text=True, env={**os.environ, "LC_ALL": "C"})
    return next((line.split("[")[1].rstrip("]") for line in printed.splitlines() if f"({tag})" in line), None)


def copy(path, target):
    """Copies a library. Where the original looks for others in folders of this machine, the copy looks beside itself."""
    with open(path, "rb") as file:
        content = file.read()
    places = dynamic(path, "RUNPATH")
    if places:
        old, new = places.encode() + b"\0", b"$ORIGIN\0"
        if content.count(old) != 1 or len(new) > len(old):
            sys.exit(f"moeccl: the RUNPATH of {path}, {places}, cannot be changed to $ORIGIN")
        content = content.replace(old, new.ljust(len(old), b"\0"))
    with open(target, "wb") as file:
        file.write(content)


def place(library, folder):
    """Copies it into the folder, where builds of earlier versions may have left others, which pip would install too."""
    for old in glob.glob(os.path.join(folder, f"lib{NAME}*.so*")):
        os.remove(old)
    copy(library.path, os.path.join(folder, library.soname))


def below(root, include):
    """The one in a prefix or a build folder."""
    found = glob.glob(os.path.join(root, "**", f"lib{NAME}.so"), recursive=True)
    if not found:
        sys.exit(f"moeccl: there is no lib{NAME}.so in {root}")
    return Library(include, os.path.abspath(found[0]))


def built(source, folder):
    """The one that meson makes of the sources, in the folder."""
    options = ["-Dmoe=disabled", "-Dtests=disabled", "-Dmpi=disabled", "-Dperf=disabled",
               *shlex.split(os.environ.get("MOECCL_MESON_OPTIONS", ""))]
    configured = ["--reconfigure"] if os.path.exists(os.path.join(folder, "build.ninja")) else []
    setup = subprocess.run(["meson", "setup", *configured, folder, source, *options], stdout=subprocess.PIPE, text=True)
    print(setup.stdout, flush=True)
    if setup.returncode != 0:
        errors = [line for line in setup.stdout.splitlines() if "ERROR" in line]
        sys.exit("\n".join(["moeccl: the library cannot be built.", *errors]))
    jobs = os.environ.get("MAX_JOBS")
    subprocess.run(["meson", "compile", "-C", folder, *(["-j", jobs] if jobs else []), NAME], check=True)
    return below(os.path.join(folder, "src"), os.path.join(source, "include"))


def told(name, otherwise=None):
    """The folder that the variable of the environment names."""
    path = os.environ.get(name) or otherwise
    if path and not os.path.isabs(path):
        sys.exit(f"moeccl: {name} is {path}; it must be an absolute path, because pip builds in another folder")
    return path


def find(version, folder):
    """The Library; what has to be built for it lies in the folder."""
    root = told("MOECCL_ROOT")
    if root:
        return below(root, told("MOECCL_INCLUDE", os.path.join(root, "include")))
    if not must_be_built(version):
        return below(*pkg_config("--variable=libdir", NAME), *pkg_config("--variable=includedir", NAME))
    source = source_folder()
    if source is None:
        sys.exit(f"moeccl: libmoeccl {version} was not found; install it, or set MOECCL_ROOT to where it is")
    return built(source, folder)
