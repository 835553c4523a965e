#!/usr/bin/env python3
"""Prints algorithms/registry.cc as meson makes it of algorithms/meson.build, for machines without meson.

    registry.py ROOT [--compare FILE]

With --compare, prints nothing and exits with 1 unless FILE is the same: meson's own, in a test.
"""
import ast
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def tables(text):
    """The dictionaries `registry` and `same` of algorithms/meson.build, which are Python's too."""
    found = {}
    for name in ("registry", "same"):
        match = re.search(rf"^{name} = (\{{.*?\}})$", text, re.MULTILINE | re.DOTALL)
        if match is None:
            raise SystemExit(f"registry.py: algorithms/meson.build has no {name}")
        found[name] = ast.literal_eval(match[1])
    return found["registry"], found["same"]


def generate(root):
    folder = pathlib.Path(root, "algorithms")
    registry, same = tables((folder / "meson.build").read_text())
    entries = [(collective, collective, name, line)
               for collective, names in registry.items() for name, line in names.items()]
    declarations = [f"namespace {origin.lower()} {{ Plan {name}(const Topology&, const Parameters&, int rank); }}"
                    for _, origin, name, _ in entries]
    entries += [(collective, origin, name, line)
                for collective, origin in same.items() for name, line in registry[origin].items()]
    lines = [f'    {{Collective::{collective}, "{name}", "{line}", &{origin.lower()}::{name}}},'
             for collective, origin, name, line in entries]
    template = (folder / "registry.cc.in").read_text()
    return template.replace("@DECLARATIONS@", "\n".join(declarations)).replace("@ENTRIES@", "\n".join(lines))


def main():
    text = generate(sys.argv[1])
    if len(sys.argv) == 4 and sys.argv[2] == "--compare":
        if pathlib.Path(sys.argv[3]).read_text() != text:
            raise SystemExit(f"registry.py: it would make something else than {sys.argv[3]}")
    elif len(sys.argv) == 2:
        sys.stdout.write(text)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
