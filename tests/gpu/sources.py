#!/usr/bin/env python3
"""Holds what tests/gpu/sources.sh makes programs of against what meson does, where meson makes them too.

    sources.py ROOT BUILD

Whatever meson links that sources.sh leaves out has to be in LEFT_OUT, for a reason.
"""
import pathlib
import re
import subprocess
import sys

# Of programs, what their machines do without.
LIBRARY = (
    r"src/exec/ucx_\w+\.cc",  # there is no UCX
    r"src/bootstrap/hardware\.cc",  # nor hwloc
    r"perf/common/mpi_competitor\.cc",  # nor MPI
    r".*_absent\.cc",  # what meson did not find here may be there
)
# Meson puts the options and the functions that tests hold by themselves into libraries of all tools.
LEFT_OUT = {
    "perf/moeccl-perf": LIBRARY + (r"perf/(fit|plan|predict)/\w+\.cc",),
    "perf/moeccl-fit": LIBRARY + (r"perf/(plan|predict)/\w+\.cc", r"perf/perf/(layer|route)_options\.cc"),
    "tests/gpu/ranks_gpu": LIBRARY,
    "tests/gpu/emulation/kernels_emulated": (r"tests/gpu/emulation/\w+\.cc", r"src/base/(?!text)\w+\.cc"),
    "tests/gpu/emulation/bench_emulated": (r"tests/gpu/emulation/\w+\.cc", r"src/base/(?!text)\w+\.cc"),
}
NVCCS_NAMES = {"kernels_emulated": "kernels_gpu", "bench_emulated": "bench_gpu"}


def by_meson(root, build, target):
    """Sources of all that the target is linked from."""
    inputs = subprocess.run(["ninja", "-C", build, "-t", "inputs", target], check=True, capture_output=True, text=True)
    found = set()
    for line in inputs.stdout.splitlines():
        path = (build / line).resolve()
        # Generated ones are in the build folder, in the place of their like.
        for base in (build, root):
            if path.suffix in (".cc", ".cu") and path.is_relative_to(base):
                found.add(str(path.relative_to(base)))
                break
    return found


def by_nvcc(root, program):
    script = f"build=algorithms; json=1; source tests/gpu/sources.sh; sources_of {program}"
    done = subprocess.run(["bash", "-c", script], cwd=root, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    root, build = (pathlib.Path(path).resolve() for path in sys.argv[1:])
    known = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    compared, wrong = 0, []
    for target, left_out in LEFT_OUT.items():
        if not re.search(rf"^{re.escape(target)}: ", known.stdout, re.MULTILINE):
            continue
        name = pathlib.Path(target).name
        program = NVCCS_NAMES.get(name, name)
        sources = by_nvcc(root, program)
        meson = by_meson(root, build, target)
        wrong += [f"{program} is linked without {source}, which meson links it with"
                  for source in sorted(meson - sources) if not any(re.fullmatch(rule, source) for rule in left_out)]
        wrong += [f"{program} is linked with {source}, which is not there" for source in sorted(sources)
                  if not (root / source).is_file() and not (build / source).is_file()]
        compared += 1
    if wrong:
        raise SystemExit("sources.py: " + "\nsources.py: ".join(wrong))
    if not compared:
        print("meson makes none of these programs here")
        sys.exit(77)


if __name__ == "__main__":
    main()
