#!/usr/bin/env python3
"""Installs the build into a temporary folder, moves the prefix, then builds and runs C programs against it there.

    install_test.py --build DIR --source DIR --meson CMD --cc CC --pkg-config CMD

The programs find moeccl by README.md's command, through pkg-config alone, and by CMake's find_package. Every header of
include/moeccl must have been installed, and the examples of one file, which compile by the same command; the first runs. Tools,
moeccl-mpi too, find their libraries by themselves, and have a version, a manual page and completion.
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile


def run(command, **variables):
    print("$ " + shlex.join(command), flush=True)
    subprocess.run(command, check=True, env={**os.environ, **variables})


def printed(command, **variables):
    """What a command prints; nothing may be on its stderr."""
    print("$ " + shlex.join(command), flush=True)
    done = subprocess.run(command, check=False, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode or done.stderr:
        raise SystemExit(f"{shlex.join(command)} ends with {done.returncode}: {done.stderr}")
    return done.stdout


def find(root, name):
    """The one file of that name below root."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) if name in names]
    if len(found) != 1:
        raise SystemExit(f"{name} was installed {len(found)} times: {found}")
    return found[0]


CMAKE = """cmake_minimum_required(VERSION 3.18)
project(program C)
find_package(moeccl {version} REQUIRED COMPONENTS moeccl moe)
add_executable(program program.c)
target_link_libraries(program moeccl::moe)
"""


def cmake(stage, prefix, version):
    """A program that finds the installation by find_package and its prefix; another major version must not be found."""
    folder = os.path.join(stage, "by-cmake")
    os.mkdir(folder)
    shutil.copy(os.path.join(stage, "program.c"), folder)
    for wanted, right in ((f"{int(version.split('.')[0]) + 1}.0", False), (version, True)):
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(CMAKE.format(version=wanted))
        command = ["cmake", "-S", folder, "-B", os.path.join(folder, "build-" + wanted), f"-DCMAKE_PREFIX_PATH={prefix}"]
        print("$ " + shlex.join(command), flush=True)
        if (subprocess.run(command, capture_output=not right).returncode == 0) != right:
            raise SystemExit(f"find_package(moeccl {wanted}) {'fails' if right else 'is content'}")
    run(["cmake", "--build", os.path.join(folder, "build-" + version)])
    # CMake has put the library's folder into the program.
    run([os.path.join(folder, "build-" + version, "program")], LD_LIBRARY_PATH="")


def tools(stage, version, environment):
    """Each installed tool says its version and has a manual page and completion, which know that option."""
    folder, completion = os.path.dirname(find(stage, "moeccl-lab")), find(stage, "moeccl")
    with open(completion, encoding="utf-8") as file:
        completed = re.search(r"^complete .* _moeccl (.*)$", file.read(), re.MULTILINE)[1].split()
    for name in sorted(os.listdir(folder)):
        tool = os.path.join(folder, name)
        if name not in completed:
            raise SystemExit(f"perf/completion.bash does not complete {name}")
        said = printed([tool, "--version"], **environment)
        if said != f"{name} (moeccl) {version}\n":
            raise SystemExit(f"{name} --version says {said!r}")
        typed = 'source "$0"; COMP_WORDS=("$1" --vers); COMP_CWORD=1; _moeccl; echo "${COMPREPLY[@]}"'
        offered = printed(["bash", "-c", typed, completion, tool], **environment)
        if set(offered.split()) != {"--version"}:
            raise SystemExit(f"{name} --vers is completed to {offered!r}")
        if shutil.which("help2man"):
            with open(find(stage, name + ".1"), encoding="utf-8") as file:
                page = file.read()
            for words in (".SH DESCRIPTION", r"\-\-version"):
                if words not in page:
                    raise SystemExit(f"{name}.1 has no {words}")


def preloaded(stage, environment):
    """moeccl-mpi finds its libraries beside itself wherever the prefix is, also by a link to it, and the loader takes them."""
    script = find(stage, "moeccl-mpi")
    link = os.path.join(stage, "link-to-moeccl-mpi")
    os.symlink(script, link)
    for abi in ("openmpi", "mpich"):
        name = f"libmoeccl-mpi-{abi}.so"
        if not any(name in names for _, _, names in os.walk(stage)):
            continue
        for command in (script, link):
            said = printed([command, "--abi", abi, "sh", "-c", "echo $LD_PRELOAD"], LD_PRELOAD="", **environment).strip()
            if not os.path.exists(said) or not os.path.samefile(said, find(stage, name)):
                raise SystemExit(f"{command} preloads {said!r}, not {find(stage, name)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--build", "--source", "--meson", "--cc", "--pkg-config", "--version"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as stage:
        run([*shlex.split(options.meson), "install", "-C", options.build, "--no-rebuild", "--quiet",
             "--destdir", stage])
        # Under DESTDIR the prefix is not where it was configured to be. Then the folder itself gets another name.
        prefix = os.path.join(stage, "moved")
        os.rename(os.path.dirname(os.path.dirname(find(stage, "moeccl-lab"))), prefix)
        expected = set(os.listdir(os.path.join(options.source, "include", "moeccl")))
        headers = os.path.dirname(find(stage, "moeccl.h"))
        if set(os.listdir(headers)) != expected:
            raise SystemExit(f"installed are {sorted(os.listdir(headers))} instead of {sorted(expected)}: "
                             "see include/meson.build")

        found = {"PKG_CONFIG_PATH": os.path.dirname(find(stage, "moeccl.pc")),
                 "LD_LIBRARY_PATH": os.path.dirname(find(stage, "libmoeccl.so"))}
        with open(os.path.join(options.source, "README.md"), encoding="utf-8") as file:
            compile_and_link = re.search(r"^    cc (program\.c .*)$", file.read(), re.MULTILINE)[1]
        for package, source in (("moeccl", "consumer.c"), ("moeccl-moe", "every_struct.c")):
            shutil.copy(os.path.join(options.source, "tests", "install", source), os.path.join(stage, "program.c"))
            command = (f"{options.cc} -std=c99 -Wall -Wextra -pedantic -Werror " + compile_and_link).replace(
                "pkg-config", options.pkg_config).replace(" moeccl)", f" {package})")
            run(["sh", "-c", f"cd {shlex.quote(stage)} && {command}"], **found)
            run([os.path.join(stage, "program")], **found)
        examples = os.path.dirname(find(stage, "01_alltoall.c"))
        for name in sorted(os.listdir(examples)):
            example = command.replace("program.c", os.path.join(examples, name)).replace("-o program", "-o example")
            with open(os.path.join(examples, name), encoding="utf-8") as file:
                needs = " -lm" if "-lm" in file.read().partition("*/")[0] else ""
            run(["sh", "-c", f"cd {shlex.quote(stage)} && {example}{needs}"], **found)
            if name == "01_alltoall.c":
                rows = printed([os.path.join(stage, "example")], **found)
                if rows != "from rank 0: 0 1 2 3\n":
                    raise SystemExit(f"{name} prints {rows!r} on one rank")
        run(["python3", find(stage, "plot_profile.py"), "--help"])
        # As a user's shell has it: nothing says where the libraries are.
        tools(stage, options.version, {"LD_LIBRARY_PATH": ""})
        if any("moeccl-mpi" in names for _, _, names in os.walk(stage)):
            preloaded(stage, {"LD_LIBRARY_PATH": ""})
        if shutil.which("cmake"):
            cmake(stage, prefix, options.version)


if __name__ == "__main__":
    main()
