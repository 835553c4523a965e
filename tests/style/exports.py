#!/usr/bin/env python3
"""Holds what the shared library exports against what the public headers declare.

    exports.py LIBRARY HEADER...

Exported must be exactly the functions declared MOECCL_API, all with the one version of the version
script, and the SONAME must carry the major version that moeccl.h states.
"""
import re
import subprocess
import sys

from source_files import CodeFile

VERSION = "MOECCL_{major}"


def declared(headers):
    """(names of the functions declared MOECCL_API, major version)"""
    names, major = set(), None
    for path in headers:
        with open(path, encoding="utf-8") as file:
            code = CodeFile(file.read())
        without_macros = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", code.code, flags=re.MULTILINE)
        for statement in re.findall(r"\bMOECCL_API\b([^;{]*)", without_macros):
            name = re.match(r"[\w\s*]*?\b(\w+)\s*\(", statement)
            if not name:
                raise SystemExit(f"{path}: no function in: MOECCL_API {statement}")
            names.add(name[1])
        found = re.search(r"#define MOECCL_MAJOR (\d+)", code.code)
        major = found[1] if found else major
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


def soname(library):
    output = subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout
    found = re.search(r"^\s*SONAME\s+(\S+)", output, re.MULTILINE)
    return found[1] if found else None


def problems(names, major, symbols, name_of_library):
    version = VERSION.format(major=major)
    found = [f"{name} is declared but not exported" for name in sorted(names - {n for n, _ in symbols})]
    for name, its_version in sorted(symbols):
        if name not in names:
            found.append(f"{name} is exported but no header declares it MOECCL_API")
        elif its_version != version:
            found.append(f"{name} has version {its_version or 'none'} instead of {version}")
    if name_of_library != f"libmoeccl.so.{major}":
        found.append(f"SONAME is {name_of_library} instead of libmoeccl.so.{major}")
    return found


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    library, headers = sys.argv[1], sys.argv[2:]
    names, major = declared(headers)
    found = problems(names, major, set(exported(library)), soname(library))
    print("\n".join(found) or f"{len(names)} functions, declared and exported")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
