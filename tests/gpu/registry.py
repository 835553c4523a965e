#!/usr/bin/env python3
"""Prints algorithms/registry.cc, or with --schedules that of schedules, as meson makes it of algorithms/meson.build, for
machines without meson.

    registry.py [--schedules] ROOT [--compare FILE]

With --compare, prints nothing and exits with 1 unless FILE is the same: meson's own, in a test.
"""
import ast
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def tables(text, names=("registry", "same")):
    """Dictionaries of algorithms/meson.build, which are Python's too."""
    found = {}
    for name in names:
        match = re.search(rf"^{name} = (\{{.*?\}})$", text, re.MULTILINE | re.DOTALL)
        if match is None:
            raise SystemExit(f"registry.py: algorithms/meson.build has no {name}")
        found[name] = ast.literal_eval(match[1])
    return [found[name] for name in names]


def generate(root):
    folder = pathlib.Path(root, "algorithms")
    registry, same = tables((folder / "meson.build").read_text())
    entries = [(collective, collective, name, line)
               for collective, names in registry.items() for name, line in names.items()]
    declarations = [f"namespace {origin.lower()} {{ Plan {name}(const Topology&, const Parameters&, int rank); }}"
                    for _, origin, name, _ in entries]
    entries += [(collective, origin, name, line)
                for collective, origin in same.items() for name, line in registry[origin].items() if name != "native"]
    lines = [f'    {{Collective::{collective}, "{name}", "{line}", &{origin.lower()}::{name}, '
             f'{str(name == "native").lower()}}},'
             for collective, origin, name, line in entries]
    template = (folder / "registry.cc.in").read_text()
    return template.replace("@DECLARATIONS@", "\n".join(declarations)).replace("@ENTRIES@", "\n".join(lines))


def generate_schedules(root):
    folder = pathlib.Path(root, "algorithms")
    (schedules,) = tables((folder / "meson.build").read_text(), ("schedules",))
    declarations, entries = [], []
    for name, (backward, line) in schedules.items():
        declarations.append(f"Schedule {name.lower()}();")
        if backward != "mirrored":
            declarations.append(f"Schedule {backward}(const Schedule& forward);")
        entries.append(f'    {{"{name}", "{line}", &{name.lower()}, &{backward}}},')
    template = (folder / "schedules" / "registry.cc.in").read_text()
    return template.replace("@DECLARATIONS@", "\n".join(declarations)).replace("@ENTRIES@", "\n".join(entries))


def main():
    arguments = sys.argv[1:]
    make = generate
    if arguments and arguments[0] == "--schedules":
        make = generate_schedules
        del arguments[0]
    if not arguments:
        raise SystemExit(__doc__)
    text = make(arguments[0])
    if len(arguments) == 3 and arguments[1] == "--compare":
        if pathlib.Path(arguments[2]).read_text() != text:
            raise SystemExit(f"registry.py: it would make something else than {arguments[2]}")
    elif len(arguments) == 1:
        sys.stdout.write(text)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
