#!/usr/bin/env python3
"""Unpacks Intel MPI and its benchmarks from PyPI's package impi-rt into a folder.

    get_impi.py FOLDER

Needs pip (Debian's python3-pip). Nothing is installed.
"""
import glob
import os
import subprocess
import sys
import tempfile
import zipfile


def main():
    folder = sys.argv[1]
    with tempfile.TemporaryDirectory() as wheels:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "impi-rt"], check=True)
        with zipfile.ZipFile(glob.glob(f"{wheels}/impi_rt-*.whl")[0]) as wheel:
            for member in wheel.infolist():
                _, found, path = member.filename.partition(".data/data/")
                if not found or member.is_dir():
                    continue
                target = os.path.join(folder, path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(wheel.read(member))
                os.chmod(target, 0o755)


if __name__ == "__main__":
    main()
