#!/usr/bin/env python3
"""Holds the dependencies of the code against CONTRIBUTING.md's table of who may know what.

    includes.py ROOT

Prints every violation as file:line: what is there, and the rule that it breaks; exits with 1 if there is any. What the
table allows and nobody does is one, too.
"""
import os
import posixpath
import re
import sys

from source_files import CodeFile, all_files, repository_files

CLOCKS = r"chrono|ctime|time\.h|sys/times?\.h|sys/timeb\.h|x86intrin\.h"
CUDA = r"cuda[\w]*(\.h|/.*)|cu(blas|rand|fft|sparse|solver)\w*\.h|(cub|thrust|cooperative_groups)[./].*"
UCX = r"uc[pstm]/.*|uc[pst]\.h"
NCCL = r"nccl\w*(\.h|/.*)"

# (files, what they must not include, why); both are regular expressions on the whole path.
HEADERS = [
    (r"(?!src/exec/ucx).*", UCX, "only src/exec/ucx* knows UCX"),
    (r"(?!src/exec/nccl|include/moeccl/nccl\.h).*", NCCL,
     "only src/exec/nccl* and include/moeccl/nccl.h know NCCL"),
    (r"algorithms/.*", CUDA, "algorithms know no CUDA"),
    (r"src/(?!exec/nccl).*", CUDA, "in src only src/exec/nccl* knows CUDA"),
    (r"(algorithms|include|src)/.*|kernels/(?!blas).*", r"(.*/)?cblas\w*\.h", "only kernels/blas* knows a BLAS"),
    (r"algorithms/.*", CLOCKS, "algorithms know no clocks"),
    (r"include/(?!moeccl/nccl\.h).*", CUDA, "public headers show no CUDA type; nccl.h alone may"),
    (r"src/comm/domain\..*", r"src/comm/(communicator|host_communicator|stream)\.h",
     "a domain knows its communicators and streams as Domain::Member and Domain::Work alone"),
    (r"src/comm/(host_)?communicator.*", r"src/comm/stream\.h",
     "streams use communicators, which know them as CallQueue alone"),
    (r"src/exec/.*", r"algorithms/(collective|registry)\.h",
     "executors do not know which collective or algorithm they run"),
]

# (files, what their code must not say, why)
CODE = [
    (r"algorithms/.*", r"\b(secure_)?getenv\b|\b_*environ\b", "algorithms know no environment"),
    (r"algorithms/.*", r"\bstd\s*::\s*chrono\b|\bclock(_gettime)?\s*\(|\bgettimeofday\b|\b__?rdtscp?\b",
     "algorithms know no clocks"),
    (r"algorithms/schedules/.*", r"\bvoid\s*\*|\bstd\s*::\s*byte\b|\b(float|double)\b|\bmoeccl[A-Z]\w*",
     "schedules know no pointers, no elements' values and no calls"),
]

# Where no algorithm, or schedule of layers, may be named: its plan and the registry's entry are all that is known of it.
NAMELESS = {
    "registry": (r"src/(verify|model|exec|route)/.*",
                 "verify, model, exec and route know no algorithm by name"),
    "schedules": (r"src/(verify|model|route)/.*", "verify, model and route know no schedule by name"),
}

TOP_LEVEL = {"meson.build", "meson_options.txt", "include", "src", "kernels", "algorithms", "perf",
             "tests", "examples", "LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"}

TABLE = "CONTRIBUTING.md"
SOURCE = re.compile(r".*\.(h|hh|hpp|inc|c|cc|cpp|cu|cuh)(\.in)?")


def read_table(root):
    """By part the line of its row and the parts that it may include, beside its own files and include/; None:
    everything. A file belongs to the longest part that begins its path."""
    with open(os.path.join(root, TABLE), encoding="utf-8") as file:
        lines = file.read().splitlines()
    parts = {}
    inside = False
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            inside = line == "## What is where, and who may know what"
        columns = [column.strip() for column in line.strip("|").split("|")]
        if not inside or len(columns) != 4:
            continue
        named, allowed = ([name.removesuffix("/") for name in re.findall(r"`([^`]+)`", column)]
                          for column in (columns[0], columns[2]))
        for part in named:
            mine = None if columns[2] == "everything" else allowed
            # All of src/ may use its base, but what is built by itself.
            if mine is not None and part.startswith("src/") and part not in ("src/base", "src/bindings"):
                mine = [*mine, "src/base"]
            parts[part] = (number, mine)
    if not parts:
        raise SystemExit(f"includes.py: found no table in {TABLE}")
    return parts


def part_of(path, parts):
    """The part that a file belongs to, or None: not a place for code."""
    folder = posixpath.dirname(path)
    while folder and folder not in parts:
        folder = posixpath.dirname(folder)
    return folder or None


def resolve(root, file, include, quoted):
    """The repository's file that an #include means, relative to root, or None: a system header."""
    for base in ([posixpath.dirname(file)] if quoted else []) + ["", "include"]:
        path = posixpath.normpath(posixpath.join(base, include))
        if os.path.isfile(os.path.join(root, path)):
            return path
    return None


def registered(root):
    """By dictionary of algorithms/meson.build (folder, name) of each algorithm or schedule in it."""
    with open(os.path.join(root, "algorithms", "meson.build")) as file:
        text = file.read()
    dictionaries = {name: re.search(rf"^{name} = \{{(.*?)^\}}", text, re.MULTILINE | re.DOTALL) for name in NAMELESS}
    for name, found in dictionaries.items():
        if not found or not re.search(r"^ +'\w+':", found[1], re.MULTILINE):
            raise SystemExit(f"includes.py: found nothing in `{name}` of algorithms/meson.build")
    collectives = re.finditer(r"'(\w+)': \{(.*?)\n  \}", dictionaries["registry"][1], re.DOTALL)
    return {"registry": [(one[1].lower(), name) for one in collectives
                         for name in re.findall(r"^ +'(\w+)':", one[2], re.MULTILINE)],
            "schedules": [("schedules", name) for name in re.findall(r"^  '(\w+)':", dictionaries["schedules"][1],
                                                                     re.MULTILINE)]}


def check_include(root, file, parts, path, quoted, used):
    """Yields the rules that one #include breaks, and adds (part, part included) to `used`."""
    part = part_of(file, parts)
    target = resolve(root, file, path, quoted)
    named = target or path
    if target:
        target_part = part_of(target, parts)
        used.add((part, target_part))
        allowed = parts[part][1]
        if allowed is not None and target_part not in (part, "include", *allowed):
            others = ", ".join(sorted({"include", *allowed}))
            yield f"{part} may include its own files and {others}, not {target_part or target}"
        if part in ("perf", "perf/plan", "examples", "include") and target_part == "include" and \
                not path.startswith("moeccl/"):
            yield "public headers are included as <moeccl/...>, as users do"
    elif quoted:
        yield "not a file of this repository: include paths start at its root, include/ or here"
    for files, headers, rule in HEADERS:
        if re.fullmatch(files, file) and re.fullmatch(headers, named):
            yield rule


def check_names(code, known, rule):
    """Yields (line, what, rule) for each algorithm or schedule that the code names."""
    names = "|".join(name for _, name in known)
    for line, text in code.strings:
        if re.search(rf"^({names})$|=\s*({names})\b", text):
            yield line, f'"{text}"', rule
    for folder, name in known:
        # As moeccl::schedules::s1, or as moecclScheduleS1 of the public API.
        number = rf"|\b(?i:moecclSchedule{name})\b" if folder == "schedules" else ""
        for line, text in code.words(rf"\b{folder}\s*::\s*({name}|{name.lower()})\b{number}"):
            yield line, text, rule


def check_file(root, file, parts, known, used):
    """Yields (line, what, rule) for each violation in one file."""
    if part_of(file, parts) is None:
        yield 1, file, "code lives in " + ", ".join(sorted({p.split("/")[0] for p in parts}))
        return
    with open(os.path.join(root, file), encoding="utf-8") as stream:
        code = CodeFile(stream.read())
    for line, path, quoted in code.includes:
        for rule in check_include(root, file, parts, path, quoted, used):
            yield line, f"#include {path}", rule
    for files, pattern, rule in CODE:
        if re.fullmatch(files, file):
            for line, text in code.words(pattern):
                yield line, text, rule
    for dictionary, (files, rule) in NAMELESS.items():
        if re.fullmatch(files, file):
            yield from check_names(code, known[dictionary], rule)


def violations(root):
    """All violations of the tree, as lines of text."""
    found = []
    for name in sorted({path.split("/")[0] for path in repository_files(root)} - TOP_LEVEL):
        if not name.startswith("."):
            found.append(f"{name}:1: the top level holds " + ", ".join(sorted(TOP_LEVEL)) +
                         " and dot files, nothing else")
    known = registered(root)
    parts = read_table(root)
    used = set()
    files = [f"{top}/{path}" for top in sorted({part.split("/")[0] for part in parts})
             if os.path.isdir(os.path.join(root, top))
             for path in sorted(all_files(os.path.join(root, top))) if SOURCE.fullmatch(path)]
    if not files:
        raise SystemExit(f"includes.py: {root} holds no code")
    for file in files:
        for line, what, rule in sorted(check_file(root, file, parts, known, used)):
            found.append(f"{file}:{line}: {what}: {rule}")
    for part, (line, allowed) in parts.items():
        for other in allowed or []:
            if other != "src/base" and (part, other) not in used:
                found.append(f"{TABLE}:{line}: {part} includes nothing of {other}: take that out of the row")
    return found


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = violations(sys.argv[1])
    print("\n".join(found) or "every #include is as the table says")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
