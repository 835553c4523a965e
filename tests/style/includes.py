#!/usr/bin/env python3
"""Holds the dependencies of the code against the table of who may know what.

    includes.py ROOT

Prints every violation as file:line: what is there, and the rule that it breaks; exits with 1 if there
is any. CONTRIBUTING.md has the same table for people.
"""
import os
import posixpath
import re
import sys

from source_files import CodeFile, all_files, repository_files

# Which parts a part may include; itself and include/ always. A file belongs to the longest part that
# begins its path. "src" alone stands for src/*.h, which all of src may use: errors, texts, handles, the log, and what
# libmoeccl-moe may ask of libmoeccl beside the public API (src/internal.h).
PARTS = {
    "include": [],
    "algorithms": [],
    "algorithms/routes": ["algorithms"],
    "algorithms/schedules": ["algorithms"],
    "kernels": ["src"],
    "src": [],
    "src/verify": ["algorithms", "algorithms/schedules", "kernels", "src"],
    "src/cost": ["algorithms", "kernels", "src"],
    "src/profile": ["algorithms", "algorithms/schedules", "kernels", "src", "src/cost"],
    "src/select": ["algorithms", "algorithms/routes", "kernels", "src", "src/verify", "src/cost", "src/profile"],
    "src/bootstrap": ["algorithms", "src"],
    "src/watch": ["algorithms", "src", "src/bootstrap"],
    "src/exec": ["algorithms", "kernels", "src", "src/bootstrap", "src/watch"],
    "src/comm": ["algorithms", "kernels", "src", "src/bootstrap", "src/watch", "src/exec"],
    "src/probe": ["algorithms", "algorithms/schedules", "kernels", "src", "src/bootstrap", "src/watch", "src/exec", "src/comm", "src/cost", "src/profile",
                  "src/verify", "src/select"],
    "src/route": ["algorithms", "algorithms/routes", "kernels", "src", "src/cost", "src/exec", "src/comm"],
    "src/schedule": ["algorithms/schedules", "src"],
    "src/moe": ["algorithms", "algorithms/schedules", "kernels", "src", "src/profile", "src/select", "src/schedule"],
    "src/api": ["algorithms", "algorithms/routes", "kernels", "src", "src/bootstrap", "src/comm", "src/exec", "src/profile", "src/select", "src/probe",
                "src/route"],
    "src/bindings": [],
    "perf": ["examples/common"],
    "perf/plan": ["algorithms", "algorithms/schedules", "perf", "src/verify"],
    "examples": ["examples/common"],
    "examples/common": [],
    "tests": None,  # everything
}

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
    (r"src/exec/.*", r"algorithms/(collective|registry)\.h",
     "executors do not know which collective or algorithm they run"),
    (r"src/schedule/.*", r"algorithms/(?!schedules/).*|src/(?!schedule/|[^/]*$).*", "schedules run on the public API"),
    (r"src/moe/(?!layer_model|layer_sizes|schedule_terms|questions|select_api).*", r"algorithms/(?!schedules/).*|src/(profile|select)/.*",
     "the MoE layer stands on the public API; what chooses its schedule has a copy of what prices plans"),
    (r"(?!src/(api|moe)/|src/boundary\.h).*", r"src/internal\.h", "src/internal.h is between libmoeccl and libmoeccl-moe"),
]

# (files, what their code must not say, why)
CODE = [
    (r"algorithms/.*", r"\b(secure_)?getenv\b|\b_*environ\b", "algorithms know no environment"),
    (r"algorithms/.*", r"\bstd\s*::\s*chrono\b|\bclock(_gettime)?\s*\(|\bgettimeofday\b|\b__?rdtscp?\b",
     "algorithms know no clocks"),
    (r"algorithms/schedules/.*", r"\bvoid\s*\*|\bstd\s*::\s*byte\b|\b(float|double)\b|\bmoeccl[A-Z]\w*",
     "schedules know no pointers, no elements' values and no calls"),
]

# Where no algorithm may be named. Its plan and the registry's entry are all that is known of it.
NAMELESS = r"src/(verify|cost|profile|select|exec)/.*"
NAMELESS_RULE = "verify, cost, profile, select and exec know no algorithm by name"

TOP_LEVEL = {"meson.build", "meson_options.txt", "include", "src", "kernels", "algorithms", "perf",
             "tests", "examples", "LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"}

SOURCE = re.compile(r".*\.(h|hh|hpp|inc|c|cc|cpp|cu|cuh)(\.in)?")


def part_of(path):
    """The part that a file belongs to, or None: not a place for code."""
    folder = posixpath.dirname(path)
    if folder == "src":
        return "src"
    while folder and (folder not in PARTS or folder == "src"):
        folder = posixpath.dirname(folder)
    return folder or None


def resolve(root, file, include, quoted):
    """The repository's file that an #include means, relative to root, or None: a system header."""
    for base in ([posixpath.dirname(file)] if quoted else []) + ["", "include"]:
        path = posixpath.normpath(posixpath.join(base, include))
        if os.path.isfile(os.path.join(root, path)):
            return path
    return None


def algorithm_names(root):
    """(folder, name) of each registered algorithm."""
    with open(os.path.join(root, "algorithms", "meson.build")) as file:
        text = file.read()
    registry = re.search(r"^registry = \{(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    names = []
    for collective in re.finditer(r"'(\w+)': \{(.*?)\n  \}", registry[1] if registry else "", re.DOTALL):
        names += [(collective[1].lower(), name) for name in re.findall(r"^ +'(\w+)':", collective[2],
                                                                       re.MULTILINE)]
    if not names:
        raise SystemExit("includes.py: found no algorithm in the registry of algorithms/meson.build")
    return names


def check_include(root, file, part, path, quoted):
    """Yields the rules that one #include breaks."""
    target = resolve(root, file, path, quoted)
    named = target or path
    if target:
        target_part = part_of(target)
        allowed = PARTS[part]
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


def check_names(code, algorithms):
    """Yields (line, what, rule) for each algorithm that the code names."""
    names = "|".join(name for _, name in algorithms)
    for line, text in code.strings:
        if re.search(rf"^({names})$|=\s*({names})\b", text):
            yield line, f'"{text}"', NAMELESS_RULE
    for folder, name in algorithms:
        for line, text in code.words(rf"\b{folder}\s*::\s*{name}\b"):
            yield line, text, NAMELESS_RULE


def check_file(root, file, algorithms):
    """Yields (line, what, rule) for each violation in one file."""
    part = part_of(file)
    if part is None:
        yield 1, file, "code lives in " + ", ".join(sorted({p.split("/")[0] for p in PARTS}))
        return
    with open(os.path.join(root, file), encoding="utf-8") as stream:
        code = CodeFile(stream.read())
    for line, path, quoted in code.includes:
        for rule in check_include(root, file, part, path, quoted):
            yield line, f"#include {path}", rule
    for files, pattern, rule in CODE:
        if re.fullmatch(files, file):
            for line, text in code.words(pattern):
                yield line, text, rule
    if re.fullmatch(NAMELESS, file):
        yield from check_names(code, algorithms)


def violations(root):
    """All violations of the tree, as lines of text."""
    found = []
    for name in sorted({path.split("/")[0] for path in repository_files(root)} - TOP_LEVEL):
        if not name.startswith("."):
            found.append(f"{name}:1: the top level holds " + ", ".join(sorted(TOP_LEVEL)) +
                         " and dot files, nothing else")
    algorithms = algorithm_names(root)
    files = [f"{top}/{path}" for top in sorted({part.split("/")[0] for part in PARTS})
             if os.path.isdir(os.path.join(root, top))
             for path in sorted(all_files(os.path.join(root, top))) if SOURCE.fullmatch(path)]
    if not files:
        raise SystemExit(f"includes.py: {root} holds no code")
    for file in files:
        for line, what, rule in sorted(check_file(root, file, algorithms)):
            found.append(f"{file}:{line}: {what}: {rule}")
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
