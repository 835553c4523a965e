#!/usr/bin/env python3
"""Assembles the package's sdist, with the sources of the library that it builds.

    make_sdist.py FOLDER

Writes FOLDER/moeccl-VERSION.tar.gz of the files that git tracks, as they are now, and prints its path.
"""

import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "..", "..", ".."))
PACKAGE = os.path.relpath(HERE, ROOT)
# What the library is built from.
LIBRARY = ["LICENSE", "meson.build", "meson_options.txt", "algorithms", "include", "kernels", "src", f":!{PACKAGE}"]


def tracked(*paths):
    listed = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def members():
    """Names in the sdist -> files in the repository."""
    names = {os.path.relpath(name, PACKAGE): name for name in tracked(PACKAGE)}
    names.update({f"library/{name}": name for name in tracked(*LIBRARY)})
    return {"LICENSE": "LICENSE", **names}


def metadata():
    """The project table of pyproject.toml. Its version must be the library's."""
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        version = re.search(r"^  version: '(.*)'", file.read(), re.MULTILINE)[1]
    if project["version"] != version:
        sys.exit(f"{PACKAGE}/pyproject.toml is of version {project['version']}, meson.build of {version}")
    return project


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    project = metadata()
    top = f"{project['name']}-{project['version']}"
    path = os.path.join(sys.argv[1], top + ".tar.gz")
    os.makedirs(sys.argv[1], exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, source in sorted(members().items()):
            archive.add(os.path.join(ROOT, source), f"{top}/{name}", recursive=False)
        about = (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
                 f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n").encode()
        info = tarfile.TarInfo(f"{top}/PKG-INFO")
        info.size = len(about)
        archive.addfile(info, io.BytesIO(about))
    print(path)


if __name__ == "__main__":
    main()
