#!/usr/bin/env python3
"""Configures moeccl as machines would that lack something, and with options that leave something out.

    configure_test.py --source DIR --meson CMD [--products]

Each feature of meson_options.txt is enabled and disabled, and each library or tool that Debian has in a package of its own is
hidden, one at a time. --products configures all combinations of enabled and disabled options instead, for each kind of sanitizer.

A package is hidden by removing its files from a copy of /usr that only Meson sees: an overlay in a namespace of its own, which
takes root. Without rights for that these cases are left out.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

# What an option that is disabled leaves out: a target that is built else.
LEFT_OUT = {"cuda": "nccl_gpu_test", "moe": "moeccl-moe", "mpi": "mpi_test", "perf": "moeccl-perf", "tests": "collectives_test",
            "ucx": "transport_ucx_threads_test"}
# What an option needs that is enabled, as its error calls it; where it is here, there is no error.
NEEDS = {"cuda": ["nvcc"], "moe": ["libopenblas-dev"], "mpi": ["libopenmpi-dev", "mpirun"], "perf": ["CLI11"],
         "tests": ["gtest", "Boost"], "ucx": ["libucx-dev"]}
# Options that contradict each other, and what the error says.
CONTRADICTION = {"tests": "enabled", "moe": "disabled"}
CONTRADICTED = "the tests need libmoeccl-moe"


@dataclass
class Hidden:
    """What can be absent. Where it is, `target` is not built; nothing else is missing for want of it."""
    packages: list
    target: str
    paths: list = field(default_factory=list)


OPTIONAL = {
    "Open MPI": Hidden(["libopenmpi-dev", "openmpi-bin"], "mpi_test"),
    "MPICH": Hidden(["libmpich-dev", "mpich"], "moeccl-mpi-mpich"),
    "any MPI": Hidden(["libopenmpi-dev", "openmpi-bin", "libmpich-dev", "mpich"], "mpi_test"),
    "Open MPI's launcher": Hidden(["openmpi-bin"], None),
    "UCX": Hidden(["libucx-dev"], "transport_ucx_threads_test"),
    "OpenBLAS": Hidden(["libopenblas-dev", "libopenblas-pthread-dev"], "moeccl-moe"),
    "nvcc": Hidden(["nvidia-cuda-toolkit"], "nccl_gpu_test",
                   [os.path.join(folder, "nvcc") for folder in [*os.get_exec_path(), "/usr/local/cuda/bin"]]),
    "GoogleTest": Hidden(["libgtest-dev", "googletest"], "collectives_test", ["/usr/src/googletest", "/usr/src/gtest"]),
    "Google Benchmark": Hidden(["libbenchmark-dev"], "call_bench"),
    "CLI11": Hidden(["libcli11-dev"], "moeccl-perf"),
    "Boost": Hidden(["libboost-dev", "libboost1.74-dev", "libboost-context1.74-dev"], "kernels_emulated"),
    "a compiler cache": Hidden(["ccache"], None),
}
NEEDED = ["libhwloc-dev", "libmd-dev", "nlohmann-json3-dev"]

HIDE = r"""
set -e
mount -t tmpfs hidden "$1"
mkdir "$1/upper" "$1/work"
mount -t overlay hidden -o "lowerdir=/usr,upperdir=$1/upper,workdir=$1/work" /usr
xargs -r -d '\n' rm -rf <"$2"
shift 2
exec "$@"
"""


def isolated(scratch, files, command):
    """The command, in a namespace where /usr lacks these files."""
    mount = os.path.join(scratch, "mount")
    os.makedirs(mount, exist_ok=True)
    names = os.path.join(scratch, "hidden")
    with open(names, "w", encoding="utf-8") as file:
        file.write("".join(name + "\n" for name in files))
    return ["unshare", "--mount", "sh", "-c", HIDE, "sh", mount, names, *command]


def can_hide():
    with tempfile.TemporaryDirectory() as scratch:
        return shutil.which("dpkg-query") and shutil.which("unshare") and subprocess.run(
            isolated(scratch, [], ["true"]), stderr=subprocess.DEVNULL).returncode == 0


def files_of(packages):
    """All files of those of the packages that are installed."""
    files = []
    for package in packages:
        listed = subprocess.run(["dpkg-query", "-L", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        files += [name for name in listed.stdout.splitlines() if not os.path.isdir(name) or os.path.islink(name)]
    return files


@dataclass
class Outcome:
    output: str
    targets: set  # None where Meson refused

    def said(self):
        return "\n".join(self.output.splitlines()[-4:])


class Configurations:
    def __init__(self, options):
        self.source = options.source
        self.meson = shlex.split(options.meson)
        self.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        self.wrong = 0
        self.count = 0

    def options(self):
        """The names in meson_options.txt of what can be enabled and disabled."""
        printed = subprocess.run([*self.meson, "introspect", os.path.join(self.source, "meson.build"), "--buildoptions"],
                                 check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        return [each["name"] for each in json.loads(printed) if each["section"] == "user" and "enabled" in each.get("choices", [])]

    def configure(self, settings, files):
        with tempfile.TemporaryDirectory() as scratch:
            build = os.path.join(scratch, "build")
            setup = [*self.meson, "setup", build, self.source, *(f"-D{name}={value}" for name, value in settings.items())]
            # That all that the build names is there, too. Meson 1.0 has ninja rewrite its log in whatever build folder it is
            # called from, which others may be about to read.
            command = ["sh", "-c", f"{shlex.join(setup)} && ninja -C {build} -n >/dev/null"]
            done = subprocess.run(isolated(scratch, files, command) if files else command, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, cwd=scratch)
            if done.returncode != 0:
                return Outcome(done.stdout, None)
            targets = subprocess.run([*self.meson, "introspect", build, "--targets"], check=True, stdout=subprocess.PIPE,
                                     text=True).stdout
            return Outcome(done.stdout, {target["name"] for target in json.loads(targets)})

    def submit(self, settings, files=()):
        return self.pool.submit(self.configure, settings, files)

    def report(self, what, problem, outcome):
        self.count += 1
        self.wrong += bool(problem)
        print(f"{'FAILED' if problem else 'ok':6} {what}" + (f": {problem}\n{outcome.said()}" if problem else ""), flush=True)

    def built(self, what, outcome, target=None, usual=()):
        """The configuration must build as usual, but for the target."""
        problem = None
        if outcome.targets is None:
            problem = "is refused"
        elif target in outcome.targets:
            problem = f"{target} is built"
        elif not {"moeccl", "alltoall"} <= outcome.targets:
            problem = "the library or its first example is not built"
        elif target and target not in usual:
            what += f" (without it there is no {target} either)"
        self.report(what, problem, outcome)

    def refused(self, what, outcome, *names):
        problem = None
        if outcome.targets is not None:
            problem = "is accepted"
        elif not any(name in line for line in outcome.output.splitlines() if "ERROR" in line for name in names):
            problem = f"the error names none of {', '.join(names)}"
        self.report(what, problem, outcome)

    def one_at_a_time(self):
        usual = self.submit({})
        options = self.options()
        if set(options) != set(LEFT_OUT):
            raise SystemExit(f"meson_options.txt has {options}; this test knows {list(LEFT_OUT)}")
        pending = {(name, value): self.submit({name: value}) for name in options for value in ("enabled", "disabled")}
        contradicting = self.submit(CONTRADICTION)
        sanitized = self.submit({"b_sanitize": "address,undefined", "b_lundef": "false"})
        hidden = {}
        if can_hide():
            for name, absent in OPTIONAL.items():
                hidden[name] = self.submit({}, [*files_of(absent.packages), *absent.paths])
            hidden.update((package, self.submit({}, files_of([package]))) for package in NEEDED)
        else:
            print("no rights to hide packages (as root, on Debian, they would be): only options are tried")

        usual = usual.result()
        self.built("as it is", usual)
        for (name, value), future in pending.items():
            outcome = future.result()
            if value == "enabled" and outcome.targets is None:
                self.refused(f"-D{name}={value}, where what it needs is not here", outcome, *NEEDS[name])
            elif value == "enabled" and LEFT_OUT[name] not in outcome.targets:
                self.report(f"-D{name}={value}", f"{LEFT_OUT[name]} is not built", outcome)
            else:
                self.built(f"-D{name}={value}", outcome, LEFT_OUT[name] if value == "disabled" else None, usual.targets)
        self.refused("-Dtests=enabled -Dmoe=disabled", contradicting.result(), CONTRADICTED)
        self.built("with a sanitizer", sanitized.result())
        for name, future in hidden.items():
            if name in NEEDED:
                self.refused(f"without {name}", future.result(), name)
            else:
                self.built(f"without {name}", future.result(), OPTIONAL[name].target, usual.targets)

    def products(self):
        names = self.options()
        pending = []
        for sanitizer in ("none", "address,undefined"):
            for values in itertools.product(("enabled", "disabled"), repeat=len(names)):
                settings = dict(zip(names, values))
                pending.append((settings, self.submit({**settings, "b_sanitize": sanitizer, "b_lundef": "false"})))
        for settings, future in pending:
            outcome = future.result()
            what = " ".join(f"-D{name}={value}" for name, value in settings.items())
            if CONTRADICTION.items() <= settings.items():
                self.refused(what, outcome, CONTRADICTED, *itertools.chain(*NEEDS.values()))
            elif outcome.targets is None:
                self.refused(what, outcome, *itertools.chain(*(NEEDS[name] for name in names if settings[name] == "enabled")))
            else:
                left_out = [LEFT_OUT[name] for name in names if settings[name] == "disabled" and LEFT_OUT[name] in outcome.targets]
                self.built(what, outcome, left_out[0] if left_out else None, outcome.targets)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--source", "--meson"):
        parser.add_argument(name, required=True)
    parser.add_argument("--products", action="store_true", help="configure all combinations of options")
    options = parser.parse_args()
    configurations = Configurations(options)
    if options.products:
        configurations.products()
    else:
        configurations.one_at_a_time()
    print(f"{configurations.count} configurations, {configurations.wrong} wrong")
    return configurations.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
