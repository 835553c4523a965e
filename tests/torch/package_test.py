#!/usr/bin/env python3
"""Tests the PyTorch package without torch: its sdist has all that the library is built from, and errors of import say what to do.

    package_test.py --source DIR --meson CMD --cc CC
"""
import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

OPTIONS = None

# What stands in for torch, which the package registers its backend with.
TORCH = """
import sys, types
torch = types.ModuleType("torch")
torch.distributed = types.ModuleType("torch.distributed")
torch.distributed.is_available = lambda: False
sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})
"""


def run(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def compile(self, name, source, *arguments):
        path = self.path(f"{name}.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        done = run(*shlex.split(OPTIONS.cc), "-shared", "-fPIC", path, *arguments)
        self.assertEqual(done.returncode, 0, done.stdout)


class Sdist(InFolder):
    def setUp(self):
        super().setUp()
        if not os.path.exists(os.path.join(OPTIONS.source, ".git")):
            self.skipTest("what belongs to it is what git tracks, and this is no clone")
        self.made = run(sys.executable, os.path.join(OPTIONS.source, "src/bindings/torch/make_sdist.py"), self.folder)
        self.assertEqual(self.made.returncode, 0, self.made.stdout)

    def test_the_library_can_be_built_from_it(self):
        archive = self.made.stdout.split()[-1]
        with tarfile.open(archive) as opened:
            opened.extractall(self.folder)
        top = archive[:-len(".tar.gz")]
        self.assertTrue({"PKG-INFO", "LICENSE", "csrc", "moeccl", "pyproject.toml", "setup.py"} <= set(os.listdir(top)))
        setup = run(*shlex.split(OPTIONS.meson), "setup", self.path("build"), os.path.join(top, "library"), "-Dmoe=disabled",
                    "-Dtests=disabled", "-Dmpi=disabled", "-Dperf=disabled", cwd=self.folder)
        self.assertEqual(setup.returncode, 0, setup.stdout)
        dry = run("ninja", "-C", self.path("build"), "-n")
        self.assertEqual(dry.returncode, 0, dry.stdout)


class Copies(InFolder):
    def test_no_library_of_an_earlier_build_stays(self):
        os.mkdir(self.path("package"))
        for old in ("_C.so", "libmoeccl.so.0", "libmoeccl-moe.so.0"):
            open(self.path("package", old), "w", encoding="utf-8").close()
        self.compile("new", "int new(void) { return 1; }", "-Wl,-soname,libmoeccl.so.1", "-o", self.path("libmoeccl.so"))
        done = run(sys.executable, "-c", "import sys, native_library as each; each.place(each.below(sys.argv[1], None), sys.argv[2])",
                   self.folder, self.path("package"), cwd=os.path.join(OPTIONS.source, "src/bindings/torch"))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(sorted(os.listdir(self.path("package"))), ["_C.so", "libmoeccl.so.1"])


class Places(InFolder):
    def test_relative_paths_are_refused(self):
        """pip builds where they name something else, or nothing."""
        self.compile("new", "int new(void) { return 1; }", "-Wl,-soname,libmoeccl.so.1", "-o", self.path("libmoeccl.so"))
        for variables in {"MOECCL_ROOT": "there"}, {"MOECCL_ROOT": self.folder, "MOECCL_INCLUDE": "include"}:
            done = run(sys.executable, "-c", "import native_library; print(native_library.find('1', '.').path)",
                       cwd=os.path.join(OPTIONS.source, "src/bindings/torch"), env={**os.environ, **variables})
            name, path = list(variables.items())[-1]
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"{name} is {path}; it must be an absolute path", done.stdout)


class Imports(InFolder):
    """The package's own files, and a compiled part that wants what is not there."""

    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(OPTIONS.source, "src/bindings/torch/moeccl"), self.path("moeccl"))

    def said(self, statement="from moeccl import _C"):
        done = run(sys.executable, "-c", TORCH + statement, cwd=self.folder)
        self.assertEqual(done.returncode, 1, done.stdout)
        return done.stdout.splitlines()[-1]

    def without(self, library):
        """What is said where the compiled part was linked with this library, which is there no longer."""
        name = library.partition(".so")[0]
        self.compile("gone", "int gone(void) { return 1; }", f"-Wl,-soname,{library}", "-o", self.path(f"{name}.so"))
        self.compile("part", "int gone(void); int part(void) { return gone(); }", "-L" + self.folder, f"-l{name[3:]}",
                     "-o", self.path("moeccl", "_C.so"))
        os.remove(self.path(f"{name}.so"))
        return self.said()

    def test_nothing_compiled(self):
        self.assertRegex(self.said(), r"^ImportError: moeccl: .*/moeccl has no compiled part\. Install the package \(pip install ")

    def test_the_library_is_gone(self):
        said = self.without("libmoeccl-gone.so.0")
        self.assertRegex(said, r"^ImportError: moeccl: libmoeccl-gone\.so\.0, the library itself, .*pip install --force-reinstall ")

    def test_a_package_of_debian_is_gone(self):
        self.assertRegex(self.without("libucp-gone.so.0"),
                         r"^ImportError: moeccl: libucp-gone\.so\.0, .*not on this machine\. On Debian: apt-get install libucx0\.$")

    def test_another_library_is_gone(self):
        self.assertRegex(self.without("libother-gone.so.1"), "^ImportError: moeccl: libother-gone.so.1, .*LD_LIBRARY_PATH")

    def test_compiled_against_another_torch(self):
        self.compile("part", "int gone(void); int part(void) { return gone(); }", "-Wl,-z,now", "-o", self.path("moeccl", "_C.so"))
        said = self.said()
        self.assertIn("undefined symbol: gone", said)
        self.assertIn("another torch", said)

    def test_names_that_there_are_not(self):
        self.assertIn("has no attribute 'foo'", self.said("import moeccl; moeccl.foo"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--source", "--meson", "--cc"):
        parser.add_argument(option, required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
