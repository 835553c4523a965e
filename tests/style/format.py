#!/usr/bin/env python3
"""Holds the repository's C and C++ files against .clang-format.

    format.py ROOT

Other versions of clang-format lay out differently, so that only the one named below counts; without
it the test is skipped (77).
"""
import re
import shutil
import subprocess
import sys

from source_files import repository_files

VERSION = "14"


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    root = sys.argv[1]
    for command in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(command):
            version = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
            if re.search(rf"version {VERSION}\.", version):
                break
    else:
        print(f"clang-format {VERSION} is not installed")
        sys.exit(77)
    files = [path for path in repository_files(root) if re.search(r"\.(h|c|cc|cpp|cu|cuh)$", path)]
    if not files:
        raise SystemExit(f"{root} holds no C or C++ file")
    result = subprocess.run([command, "--dry-run", "--Werror", "--style=file", *files], cwd=root,
                            capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in result.stderr.splitlines() if ": error:" in line})
    if result.returncode == 0 and not wrong:
        print(f"{len(files)} files")
        return
    print(result.stderr[:20000])
    if wrong:
        print(f"to mend: clang-format -i {' '.join(wrong)}")
    sys.exit(1)


if __name__ == "__main__":
    main()
