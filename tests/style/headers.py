#!/usr/bin/env python3
"""Compiles one public header alone, as every C and C++ that its users may write.

    headers.py HEADER --include DIR... --cc CC --cxx CXX [--needs PKG_CONFIG_NAME]

The header is included twice, and each of its X_INITIALIZER macros must initialise every field of its
struct. Exits with 77 (skipped) where the package that the header needs is not installed.
"""
import argparse
import re
import shlex
import subprocess
import sys

WARNINGS = ["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror"]
LANGUAGES = [("c", "c99"), ("c", "c11"), ("c", "c17"),
             ("c++", "c++11"), ("c++", "c++14"), ("c++", "c++17"), ("c++", "c++20")]
COLUMNS = 100
LANGUAGES_OF_HPP = [("c++", "c++17"), ("c++", "c++20")]


def struct_of(macro):
    """MOECCL_MOE_CONFIG_INITIALIZER -> moecclMoeConfig_t"""
    words = macro.split("_")[1:-1]
    return "moeccl" + "".join(word.capitalize() for word in words) + "_t"


def source_for(name, text):
    initializers = re.findall(r"^#define (MOECCL_\w+_INITIALIZER)\b", text, re.MULTILINE)
    lines = [f"#include <moeccl/{name}>", f"#include <moeccl/{name}>"]
    for number, macro in enumerate(initializers):
        lines += [f"{struct_of(macro)} variable{number} = {macro};"]
    return "\n".join(lines) + "\n"


def package_flags(name):
    """What pkg-config says, as system headers: their warnings are not ours. None: not installed."""
    found = subprocess.run(["pkg-config", "--cflags", name], capture_output=True, text=True)
    if found.returncode != 0:
        return None
    return [re.sub(r"^-I", "-isystem", flag) for flag in shlex.split(found.stdout)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("header")
    parser.add_argument("--include", action="append", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--needs")
    options = parser.parse_args()

    flags = [f"-I{folder}" for folder in options.include]
    if options.needs:
        package = package_flags(options.needs)
        if package is None:
            print(f"{options.needs} is not installed")
            sys.exit(77)
        flags += package
    with open(options.header, encoding="utf-8") as file:
        text = file.read()
    source = source_for(options.header.rpartition("/")[2], text)
    failed = 0
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS:
            print(f"{options.header}:{number}: {len(line)} columns")
            failed += 1
    for language, standard in LANGUAGES if options.header.endswith(".h") else LANGUAGES_OF_HPP:
        compiler = shlex.split(options.cc if language == "c" else options.cxx)
        prototypes = ["-Wstrict-prototypes"] if language == "c" else []
        command = [*compiler, "-x", language, f"-std={standard}", *WARNINGS, *prototypes, *flags, "-"]
        result = subprocess.run(command, input=source, text=True, capture_output=True)
        print(f"{standard}: {'ok' if result.returncode == 0 else shlex.join(command)}")
        if result.returncode != 0:
            print(result.stderr)
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
