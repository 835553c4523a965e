#!/usr/bin/env python3
"""Checks the repository's scripts.

    scripts.py python|shell ROOT

python: every Python file compiles, scripts import nothing that Python does not bring along but by drawing.py, which
says what to install, and Markdown's commands name them by their path, to be pasted at the root. shell: shellcheck has
nothing to say; skipped (77) without it.
"""
import ast
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


def modules(text, path):
    """The modules that a Python file imports, by their first names."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


def problems(root):
    """What is wrong with the Python scripts and how Markdown calls them."""
    paths = list(scripts(root, ".py", rb"#!.*\bpython3?\b"))
    # Beside Python's own there is what lies in the repository.
    known = sys.stdlib_module_names | {os.path.basename(path).removesuffix(".py") for path in paths} | {"lab"}
    for path in paths:
        with open(os.path.join(root, path), "rb") as file:
            text = file.read()
        compile(text, path, "exec")
        # Whoever trains with PyTorch has it.
        if not path.startswith(("perf/", "examples/")) or path.startswith(("perf/scripts/drawing.py", "examples/torch/")):
            continue
        yield from (f"{path}: imports {name}, without a word on how to install it; see perf/scripts/drawing.py"
                    for name in sorted(set(modules(text, path)) - known))
    names = {os.path.basename(path): path for path in paths if path.startswith(("perf/scripts/", "examples/"))}
    for page in repository_files(root):
        if not page.endswith(".md"):
            continue
        with open(os.path.join(root, page), encoding="utf-8") as file:
            for command in re.findall(r"^ {4}(\S+\.py)\b", file.read(), re.MULTILINE):
                right = names.get(os.path.basename(command), command)
                if command != right or not os.access(os.path.join(root, command), os.X_OK):
                    yield f"{page}: pasted at the root, {command} does not run; is it {right}?"


def check_python(root):
    found = list(problems(root))
    if found:
        print("\n".join(found))
        sys.exit(1)
    return scripts(root, ".py", rb"#!.*\bpython3?\b")


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
