#!/usr/bin/env python3
"""Runs the commands of a page in their order, and compares what they print with what the page says.

    pages_test.py --source DIR --build DIR PAGE                runs a page of the repository; with --torch FOLDER, in which torchrun is,
                                                               those programs of PyTorch that run on one node too
    pages_test.py --source DIR --build DIR --installed PAGE    runs it with an installation under a prefix, without the repository
    pages_test.py --source DIR --build DIR --all               every command of every page is run by this test, or by one that
                                                               NOT_HERE names; behind it stands what it prints; labs are taken
                                                               down; tests that pages name are there

Commands run in a folder that is gone at the end. It has links to the repository's files, with the build as build/, or in an
installation only the programs that the page shows. Numbers of measured output may differ, except on pages of CLOSE, and so may the
lines of VARYING. SHORTER says which commands are made to take less time. Exit code 77 where a page needs an emulated cluster and
this machine permits none.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:export |for |ninja |meson |mpirun |cc |c\+\+ |mpicxx |torchrun |pip |FUZZ_|"
                     r"(?:~/|\./)\S|(?:build|perf|examples|tests|src|\.ci)/\S)")
# By test; None where there is no place to run it. All lines of a block are of one kind, or the block says more than it runs.
NOT_HERE = {
    "the build, which is there": [r"meson setup build && ninja -C build$"],
    "bare_debian.sh": [r"examples/quickstart\.sh", r"tests/run\.sh +#"],
    "install_test.py": [r"meson setup build .* meson install"],
    "tests/torch/run.sh": [r"torchrun --nproc-per-node ", r"~/moeccl-env/", r"src/bindings/torch/install\.sh ", r"pip install "],
    "two_nodes.py": [r"torchrun --nnodes "],
    "the tests of these programs": [r"build/tests/\S+ --gtest_list_tests"],
    "table_parm_test.py": [r"perf/scripts/table_parm\.py$"],
    "test_train.py": [r"build/examples/train/train .*teacher"],
    "tests/run.sh and .ci/run": [r"tests/run\.sh ", r"FUZZ_SECONDS="],
    # Of a schedule that the reader writes.
    None: [r"build/perf/moeccl-plan --schedule S3$",
           # They time what tests/torch/run.sh tests, and draw into the repository.
           r"perf/moeccl-lab run --no-prefix -- build/torch/", r"perf/scripts/plot_torch\.py",
           # It takes all of a run, which is 77 minutes.
           r"perf/scripts/compare_mpi\.py csv",
           # These need a GPU, or nvcc.
           r"tests/run_gpu\.sh", r"OUT=results tests/gpu/", r"ninja -C build -k 0 kernel_resources", r"ninja -C build kernel_report"],
}
# They show how something was measured: their output is a table or a picture of the same section.
MEASUREMENTS = {"perf/RESULTS.md": r".*", "perf/plan/PREDICT.md": r"perf/moeccl-lab |perf/scripts/table_parm"}
INSTALLED = ["README.md", "perf/README.md", "perf/fit/README.md", "perf/lab/README.md", "perf/perf/README.md", "perf/perf/LAYERS.md",
             "perf/plan/README.md", "perf/plan/PREDICT.md", "src/bindings/mpi/README.md", "include/CPP.md"]
PAGES = [*INSTALLED[:-1], "perf/RESULTS.md", "examples/train/README.md", "src/bindings/torch/README.md", "tests/README.md"]
# Programs of the reader's, which find the library by pkg-config.
NEEDS_INSTALLATION = re.compile(r"(?:cc|c\+\+|mpicxx|moeccl-plan) |mpirun -np 4 \./")
NEEDS_CLONE = re.compile(r"meson |ninja |(?:build/)?(?:tests|examples/(?!01_alltoall/))|perf/scripts/(?:table_parm|compare_mpi)")
# What a reader of an installation types instead.
BY_INSTALLATION = [(r"\bbuild/perf/|\bperf/(?=moeccl-lab)", ""), (r"\bperf/scripts/", "{prefix}/share/moeccl/scripts/"),
                   (r"\bbuild/examples/01_alltoall/", "./")]
# By which share of it a number may be off, or by its last digit. Random numbers and sums of the first are the same on every machine.
CLOSE = {"include/CPP.md": 0, "src/bindings/torch/README.md": 0.15}
# They print nothing, or what nobody reads.
SILENT = re.compile(r"export |(?:cc|c\+\+|mpicxx) |(?:perf/scripts|examples/train)/plot_\w+\.py (?!--table)|.* > \S+$", re.DOTALL)
SMALL = "--max-bytes 4K --alternatives 2 --max-repetitions 3"
SHORTER = [
    # Of RESULTS.md and PREDICT.md, which took minutes to hours.
    (r"--budget (?:75|240|300)(?: --max-bytes \dM)?", "--budget 60 --force --collectives alltoall " + SMALL),
    (r"--grids 1x8x1 --max-bytes 8M --budget 60", "--grids 1x8x1 --budget 60 --force " + SMALL),
    (r" -n \d+ (?:-w \d )?-r \d+", " -n 1 -w 1 -r 1"),
    (r"run FOLDER --repetitions 5", "run FOLDER --repetitions 2 --shapes 2x4 --uplinks none --transports ob1 --budget 30 --force"),
    (r"-l 12 --seed 271128 --scale 16", "-l 1 --scale 64"),
    (r"--layers 12 --seed 261128 --scale 64 --repetitions 9", "--layers 1 --scale 64"),
    (r"--layers 12 (.*) -r 7 --close-repetitions 7 --learn 200", r"--layers 1 \1 -r 1 --close-repetitions 0 --turn-ms 0 --learn 3"),
    (r"wrong\.json", "profile.json"),
    (r"--cuts 5 --cuts-at-start 5$", "--cuts 1 --cuts-at-start 1"),
    (r"--kills [56]0$", "--kills 1"), (r"--lives 100", "--lives 10"), (r"alltoall_times$", r"\g<0> 1"),
    # Its end does not depend on the time that it is given.
    (r"--budget 120 --grids \S+", "--budget 200 --force --grids 2x4x2 --collectives alltoall,dispatch " + SMALL),
    (r"mpirun -np 16 moeccl-fit ", "mpirun -np 4 moeccl-fit --budget 200 --force --collectives alltoall " + SMALL + " "),
    (r" --map map\.json", ""),  # which takes layers
    (r"moeccl-perf alltoall .* -f 8", r"\g<0> -n 2 -w 1 -r 2"),
    (r"moeccl-perf route .*(?= -n 100)", r"\g<0> -r 2"),
    (r" -n 100 ", " -n 2 "),
    (r"--routing even$", r"\g<0> --tokens 16 -n 1 -r 2"),
    (r"moeccl-perf layers (?!(?:.|\n)* -r )", "moeccl-perf layers -r 2 --close-repetitions 0 --turn-ms 0 "),
    (r"--layers 9 ", "--layers 1 "),
    (r"hidden=4096,experts=8,", "hidden=256,experts=8,"),
    (r"(examples/train/train\w*) (?!--steps)", r"\1 --steps 5 "),
    (r"--kills 5$", "--kills 1"),
    (r"/tmp/my-run", "$PWD/my-run"),
    (r"^torchrun ", "torchrun --standalone "),  # on any port
]
NUMBER = r"\d+(?:[.,:]\d+)*(?:e[+-]\d+)?"
# Lines of output in which words depend on what was measured.
VARYING = [
    r" +\d+ +\d+ +\d+ +\d+ +\d+ +\d+ .*(S1|S2|baseline|PPMoE)", r"  (model|always S1) ",  # moeccl-perf layers
    r"(?:auto|latency): ",  # moeccl-perf route: what was chosen
    r"Links: ", r"(alltoall|combine) +(2x4|mp2,ep4)", r" +alltoall of 2x1 ranks", r"Not measured", r"\(a larger --budget",  # moeccl-fit
    r".*step \d+ of 100", r"kills, ", r" +3\.009e\+04", r"node\d|total", r"moeccl-mpi: alltoall of ",
]
# Root starts these in tests, on fewer cores than ranks.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_mpi_yield_when_idle": "1"}
# The user's program of pages that start moeccl-mpi, and that command without an MPI.
MPI_PROGRAM = os.path.join("tests", "mpi", "small_alltoalls")
NEEDS_MPI = re.compile(r"mpirun -np \d+ moeccl-mpi ")


def blocks(text):
    """(line number, lines) of what is indented outside of other code."""
    fenced = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    block = []
    for number, line in enumerate([*fenced.splitlines(), ""], 1):
        if line.startswith("    "):
            block.append(line[4:])
        elif block:
            yield number - len(block), block
            block = []


def commands(block):
    """The commands of a block, with the lines that go on; none if it is no block of commands."""
    if not COMMAND.match(block[0]):
        return []
    return re.findall(r"^for (?:.*\n)*?done.*|(?:.*\\\n)*.*\S.*", "\n".join(block), re.MULTILINE)


def elsewhere(command):
    return (command.startswith("meson test ")
            or any(re.match(pattern, command) for patterns in NOT_HERE.values() for pattern in patterns))


def runs(page, command):
    """Does a test of this file run it?"""
    return not elsewhere(command) and (page in PAGES and not NEEDS_INSTALLATION.match(command)
                                             or page in INSTALLED and not NEEDS_CLONE.match(command))


def without_output(page, text):
    """(line number, command) of blocks behind which, up to the next one or a heading, stands neither what they print nor a link to
    it. What was measured stands in a table or a picture of the same section."""
    lines = text.splitlines()
    headings = [0, *(number for number, line in enumerate(lines, 1) if line.startswith("#")), len(lines) + 1]
    found = list(blocks(text))
    for (number, block), (following, printed) in zip(found, [*found[1:], (len(lines) + 1, [])]):
        its = [command for command in commands(block) if not SILENT.match(command)
               and not any(re.match(pattern, command) for pattern in NOT_HERE[None])]
        if not its:
            continue
        begin = max(heading for heading in headings if heading < number)
        end = min(heading for heading in headings if heading > number)
        if following < end and not commands(printed):
            continue
        if re.match(MEASUREMENTS.get(page, "(?!)"), its[-1]) and re.search(r"^(?:\||!\[)", "\n".join(lines[begin:end - 1]), re.MULTILINE):
            continue
        behind = "\n".join(lines[number + len(block) - 1:end - 1]).strip().split("\n\n")[0]
        if not re.search(r"\b(?:prints?|output)\b", behind) or "](" not in behind:
            yield number, its[-1]


def pages(source):
    listed = subprocess.run(["git", "-C", source, "ls-files", "*.md"], capture_output=True, text=True)
    if listed.returncode == 0:
        return listed.stdout.split()
    return [os.path.relpath(os.path.join(folder, name), source) for folder, _, names in os.walk(source)
            for name in names if name.endswith(".md") and "/build" not in folder]


def tests_in(text):
    """Names that commands of a page give to meson test."""
    for command in re.findall(r"\bmeson test -C build (?:--suite \S+ )?([^`\n#]+)", text):
        yield from shlex.split(command)


def check_all(source, build):
    listed = subprocess.run(["meson", "introspect", build, "--tests"], capture_output=True, text=True, check=True)
    tests = {test["name"] for test in json.loads(listed.stdout)} | {"NAME"}  # of the reader's
    wrong, used = [], set()
    for page in pages(source):
        with open(os.path.join(source, page), encoding="utf-8") as file:
            text = file.read()
        wrong += [f"{page}: there is no test \"{name}\"" for name in tests_in(text) if name not in tests]
        for number, block in blocks(text):
            for command in commands(block):
                used |= {pattern for patterns in NOT_HERE.values() for pattern in patterns if re.match(pattern, command)}
                if not runs(page, command) and not elsewhere(command):
                    wrong.append(f"{page}:{number}: no test runs: {command}")
        labs = re.findall(r"moeccl-lab (up|down)\b", "\n".join(command for _, block in blocks(text) for command in commands(block)))
        if labs != ["up", "down"] * (len(labs) // 2):
            wrong.append(f"{page}: brings labs {', '.join(labs)}: each must be down before the next one, and at the end")
        wrong += [f"{page}:{number}: nothing says what this prints: {command}" for number, command in without_output(page, text)]
    wrong += [f"NOT_HERE has {pattern}, which no page has" for patterns in NOT_HERE.values() for pattern in patterns if pattern not in used]
    if wrong:
        sys.exit("\n".join(wrong))
    print("every command is run by a test and has its output behind it, and every test that a page names is there")


def masked(line):
    return re.sub(rf"{NUMBER}|(?<= )-(?= )", "#", " ".join(line.replace("(", "( ").split()))


def alike(line, printed, share):
    """Do lines differ in numbers alone, and these by no more than this share, or their last digit? Without a share they may be any."""
    if masked(line) != masked(printed):
        return False
    for one, other in zip(re.findall(NUMBER, line), re.findall(NUMBER, printed)) if share is not None else ():
        digit = 1.01 * 10.0 ** -len(one.partition(".")[2]) if share and "." in one else 0
        if abs(float(one) - float(other)) > max(share * float(one), digit):
            return False
    return True


class Clone:
    """The repository with its build. `torch`: a folder with torchrun, or None."""
    not_here = NEEDS_INSTALLATION

    def __init__(self, source, build, root, torch):
        for name in os.listdir(source):
            if not name.startswith((".git", "build")):
                os.symlink(os.path.join(source, name), os.path.join(root, name))
        os.symlink(build, os.path.join(root, "build"))
        folders = [*([torch] if torch else []), os.path.join(build, "perf"), os.path.join(build, "src", "bindings", "mpi"), os.environ["PATH"]]
        self.environment = {"PATH": os.pathsep.join(folders)}

    def command(self, command):
        # What a page builds is there: a test builds nothing.
        return re.sub(r"^ninja -C build (.*)", r"ninja -C build -t query \1 > /dev/null", command)


class Installation:
    """What `meson install` leaves under a prefix, as README.md says that it is used, and the page's own programs."""
    not_here = NEEDS_CLONE

    def __init__(self, build, root):
        stage = os.path.join(os.path.dirname(root), "stage")
        subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage], check=True)
        self.prefix = os.path.dirname(os.path.dirname(find(stage, "moeccl-lab")))
        self.environment = {
            "PATH": os.path.join(self.prefix, "bin") + os.pathsep + os.environ["PATH"],
            "PKG_CONFIG_PATH": os.path.dirname(find(stage, "moeccl.pc")), "LD_LIBRARY_PATH": os.path.dirname(find(stage, "libmoeccl.so"))}
        example = os.path.join(self.prefix, "share", "moeccl", "examples", "01_alltoall.c")
        shutil.copy(example, os.path.join(root, "program.c"))
        subprocess.run(f"cc {example} $(pkg-config --cflags --libs moeccl) -o alltoall", shell=True, check=True, cwd=root,
                       env={**os.environ, **self.environment})

    def command(self, command):
        for pattern, instead in BY_INSTALLATION:
            command = re.sub(pattern, instead.format(prefix=self.prefix), command)
        return command


def find(stage, name):
    found = [os.path.join(folder, name) for folder, _, names in os.walk(stage) if name in names]
    if len(found) != 1:
        sys.exit(f"{name} was installed {len(found)} times: {found}")
    return found[0]


class Page:
    def __init__(self, source, build, page, folder, installed, torch):
        self.source, self.page, self.torch = source, page, torch
        with open(os.path.join(source, page), encoding="utf-8") as file:
            self.text = file.read()
        self.root, runtime = os.path.join(folder, "root"), os.path.join(folder, "runtime")
        os.mkdir(self.root)
        os.mkdir(runtime, 0o700)
        self.place = Installation(build, self.root) if installed else Clone(source, build, self.root, torch)
        for name, program in re.findall(r"^`(\w+\.(?:cpp|py))`.*?^```\w+\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL):
            with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
                file.write(program)
        self.has_mpi = os.path.exists(os.path.join(build, MPI_PROGRAM))
        if self.has_mpi:
            shutil.copy(os.path.join(build, MPI_PROGRAM), os.path.join(self.root, "program"))
        self.environment = {**os.environ, **MPI, "XDG_RUNTIME_DIR": runtime, "XDG_CACHE_HOME": os.path.join(folder, "cache"),
                            "OPENBLAS_NUM_THREADS": "1", **self.place.environment}
        self.exports = []

    def run(self, command):
        """What it prints."""
        for pattern, shorter in SHORTER:
            command = re.sub(pattern, shorter, command)
        print("$ " + command, flush=True)
        done = subprocess.run(["bash", "-ec", "\n".join([*self.exports, command])], cwd=self.root, env=self.environment, timeout=600,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout, end="", flush=True)
        if "moeccl-lab up" in command and done.returncode == 3:
            sys.exit(77)
        if done.returncode != 0:
            sys.exit(f"{self.page}: {command}\nends with {done.returncode}")
        if command.startswith("export "):
            self.exports.append(command)
        return done.stdout.splitlines()

    def step(self, command):
        """What it prints; None where it is not run here."""
        draws = re.match(r"(perf/scripts|examples/train)/plot_\w+\.py (?!--table)", command)
        if (elsewhere(command) and not (self.torch and command.startswith("torchrun --nproc-per-node ")) or self.place.not_here.match(command)
                or NEEDS_MPI.match(command) and not self.has_mpi
                or draws and not importlib.util.find_spec("matplotlib")):
            print("not here: " + command)
            return None
        return self.run(self.place.command(command))

    def is_in(self, line, got):
        """Is it one of these lines, of which it may show the beginning alone?"""
        if line.endswith("..."):
            return any(masked(each).startswith(masked(line[:-3]).rstrip()) for each in got)
        return any(alike(line, each, CLOSE.get(self.page)) for each in got)

    def check(self):
        said, ran = [], False
        try:
            for number, block in blocks(self.text):
                if its := commands(block):
                    printed = [lines for command in its if (lines := self.step(command)) is not None]
                    said += sum(printed, [])
                    ran = bool(printed)
                elif ran:
                    # What an earlier command of the page has printed may stand later.
                    for line in block:
                        if not any(re.match(pattern, line) for pattern in VARYING) and not self.is_in(line, said):
                            sys.exit(f"{self.page}:{number}: no command before prints\n{line}")
        finally:
            with contextlib.suppress(OSError):
                subprocess.run([os.path.join(self.source, "perf", "moeccl-lab"), "down"], env=self.environment, capture_output=True, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--torch", type=os.path.abspath)
    parser.add_argument("page", nargs="?")
    options = parser.parse_args()
    if options.all:
        return check_all(options.source, options.build)
    folder = tempfile.mkdtemp()
    try:
        Page(os.path.abspath(options.source), os.path.abspath(options.build), options.page, folder, options.installed,
             options.torch).check()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
