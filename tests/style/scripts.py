#!/usr/bin/env python3
"""Checks the repository's scripts.

    scripts.py python|shell ROOT

python: every Python file compiles. shell: shellcheck has nothing to say; skipped (77) without it.
"""
import os
import re
import shutil
import subprocess
import sys

from source_files import repository_files


def scripts(root, suffix, shebang):
    """Files that are named or begin like scripts of one language."""
    for path in repository_files(root):
        full = os.path.join(root, path)
        if path.endswith(suffix):
            yield path
        elif "." not in os.path.basename(path) and os.path.isfile(full):
            with open(full, "rb") as file:
                if re.match(shebang, file.readline(200)):
                    yield path


def check_python(root):
    for path in scripts(root, ".py", rb"#!.*\bpython3?\b"):
        with open(os.path.join(root, path), "rb") as file:
            compile(file.read(), path, "exec")
        yield path


def check_shell(root):
    if not shutil.which("shellcheck"):
        print("shellcheck is not installed")
        sys.exit(77)
    found = list(scripts(root, ".sh", rb"#!.*\b(ba|da|)sh\b"))
    if found and subprocess.run(["shellcheck", "--external-sources", *found], cwd=root).returncode != 0:
        sys.exit(1)
    return found


def main():
    checks = {"python": check_python, "shell": check_shell}
    if len(sys.argv) != 3 or sys.argv[1] not in checks:
        raise SystemExit(__doc__)
    found = list(checks[sys.argv[1]](sys.argv[2]))
    if not found:
        raise SystemExit(f"{sys.argv[2]} holds no {sys.argv[1]} script")
    print("\n".join(found))


if __name__ == "__main__":
    main()
