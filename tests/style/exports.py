#!/usr/bin/env python3
"""Holds what a shared library exports against what headers declare, and what it needs.

    exports.py LIBRARY HEADER... [--only NAME...] [--but NAME...] [--major HEADER] [--internal HEADER] [--needs-no NAME...]

Exported must be exactly the functions declared MOECCL_API, of these --only some, or all --but some that another library
has; all with the one version that the library's name makes (libmoeccl-moe: MOECCL_MOE_0), those of the internal header
with another. The SONAME must carry the major version that
moeccl.h states; --major names that where it is not among the headers. No library that this one needs may have a NAME
in its own.
"""
import argparse
import os
import re
import subprocess
import sys

from source_files import CodeFile


def declared(headers, of_version=None):
    """(names of the functions declared MOECCL_API, major version)"""
    names, major = set(), None
    for path in [*headers, *([of_version] if of_version else [])]:
        with open(path, encoding="utf-8") as file:
            code = CodeFile(file.read())
        without_macros = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", code.code, flags=re.MULTILINE)
        for statement in re.findall(r"\bMOECCL_API\b([^;{]*)", without_macros) if path in headers else ():
            name = re.match(r"[\w\s*]*?\b(\w+)\s*\(", statement)
            if not name:
                raise SystemExit(f"{path}: no function in: MOECCL_API {statement}")
            names.add(name[1])
        stated = re.search(r"#define MOECCL_MAJOR (\d+)", code.code)
        major = stated[1] if stated else major
    if not names or major is None:
        raise SystemExit("the headers declare no function or no MOECCL_MAJOR")
    return names, major


def exported(library):
    """(name, version) of every symbol that a program can link or look up."""
    output = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library],
                            check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@@")
        if not (kind == "A" and not version):  # the versions themselves
            yield name, version


def dynamic(library, tag):
    """The values of a tag of the dynamic section: SONAME, NEEDED."""
    output = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
    return re.findall(rf"^\s*{tag}\s+(\S+)", output, re.MULTILINE)


def problems(names, major, symbols, name_of_library, library="libmoeccl", internal=()):
    version = f"{library[3:].upper().replace('-', '_')}_{major}"
    found = [f"{name} has version {its} instead of one of the release's own" for name, its in sorted(symbols)
             if name in internal and not its.startswith("MOECCL_INTERNAL_")]
    found += [f"{name} is declared but not exported" for name in sorted(set(internal) - {n for n, _ in symbols})]
    symbols = {symbol for symbol in symbols if symbol[0] not in internal}
    found += [f"{name} is declared but not exported" for name in sorted(names - {n for n, _ in symbols})]
    for name, its_version in sorted(symbols):
        if name not in names:
            found.append(f"{name} is exported but no header declares it MOECCL_API")
        elif its_version != version:
            found.append(f"{name} has version {its_version or 'none'} instead of {version}")
    if name_of_library != f"{library}.so.{major}":
        found.append(f"SONAME is {name_of_library} instead of {library}.so.{major}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("headers", nargs="+")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--but", nargs="*", default=[])
    parser.add_argument("--major")
    parser.add_argument("--internal")
    parser.add_argument("--needs-no", nargs="*", default=[])
    options = parser.parse_args()
    names, major = declared(options.headers, options.major)
    for name in sorted({*options.only, *options.but} - names):
        raise SystemExit(f"no header declares {name}")
    names = (set(options.only) or names) - set(options.but)
    internal = declared([options.internal], options.major or options.headers[0])[0] if options.internal else set()
    found = problems(names, major, set(exported(options.library)), (dynamic(options.library, "SONAME") or [None])[0],
                     os.path.basename(options.library).split(".")[0], internal)
    found += [f"{options.library} needs {needed}" for needed in dynamic(options.library, "NEEDED")
              if any(name in needed for name in options.needs_no)]
    print("\n".join(found) or f"{len(names)} functions, declared and exported")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
