#!/usr/bin/env python3
"""Prints a registry as meson makes it of algorithms/meson.build, for machines without meson.

    registry.py registry|routes_registry|schedules_registry ROOT [--compare FILE]

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


def filled(folder, declarations, entries):
    template = (folder / "registry.cc.in").read_text()
    return template.replace("@DECLARATIONS@", "\n".join(declarations)).replace("@ENTRIES@", "\n".join(entries))


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
    return filled(folder, declarations, lines)


def generate_schedules(root):
    folder = pathlib.Path(root, "algorithms")
    (schedules,) = tables((folder / "meson.build").read_text(), ("schedules",))
    declarations, entries = [], []
    for name, (backward, line) in schedules.items():
        declarations.append(f"Schedule {name.lower()}();")
        if backward != "mirrored":
            declarations.append(f"Schedule {backward}(const Schedule& forward);")
        entries.append(f'    {{"{name}", "{line}", &{name.lower()}, &{backward}}},')
    return filled(folder / "schedules", declarations, entries)


def generate_routes(root):
    folder = pathlib.Path(root, "algorithms")
    (routes,) = tables((folder / "meson.build").read_text(), ("routes",))
    declarations = [f"Way {name}();" for name in routes]
    entries = [f'    {{"{name}", "{line}", &{name}}},' for name, line in routes.items()]
    return filled(folder / "routes", declarations, entries)


MAKERS = {"registry": generate, "routes_registry": generate_routes, "schedules_registry": generate_schedules}


def main():
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 4) or arguments[0] not in MAKERS:
        raise SystemExit(__doc__)
    text = MAKERS[arguments[0]](arguments[1])
    if arguments[2:3] == ["--compare"]:
        if pathlib.Path(arguments[3]).read_text() != text:
            raise SystemExit(f"registry.py: it would make something else than {arguments[3]}")
    elif len(arguments) == 2:
        sys.stdout.write(text)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
