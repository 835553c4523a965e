#!/usr/bin/env python3
"""Shows that the other checks of this folder notice what they are there to notice."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import exports  # noqa: E402
import files  # noqa: E402
import headers  # noqa: E402
import readme  # noqa: E402
import scripts  # noqa: E402
import versions  # noqa: E402

sys.path.insert(0, os.path.join(HERE, "..", "pages"))
import pages_test  # noqa: E402

HEADER = """#define MOECCL_MAJOR 3
#define MOECCL_API __attribute__((visibility("default")))
/* MOECCL_API int moecclCommented(void); */
MOECCL_API int
moecclOne(int a);
MOECCL_API const char* moecclTwo(void);
"""

ENVIRONMENT = """
## Environment

| variable | meaning |
|---|---|
| `MOECCL_A`, `MOECCL_B` | as `MOECCL_C` |
"""

ERRORS = """
## Errors: its own

## Errors

| result | meaning |
|---|---|
| `moecclSuccess` | not moecclOther |
"""

README = """
```c
  f();
```
[a](src/a.cc), `src/`, `build/src/a.cc`, [b](https://example.com#a), [c](include/ERRORS.md#errors-its-own), [d](#here-2)

## Here, 2

## Words
"""

TREE = {
    "README.md": README,
    "include/ENVIRONMENT.md": ENVIRONMENT,
    "include/ERRORS.md": ERRORS,
    "include/moeccl/moeccl.h": "typedef enum {\n  moecclSuccess = 0, /* x */\n  moecclNumResults = 1\n"
                               "} moecclResult_t;\n",
    "src/a.cc": 'a(getenv("MOECCL_A")); // "MOECCL_D"\nb("MOECCL_B is", "MOECCL_X_INITIALIZER");\n',
    "src/b.h": 'auto c = value("MOECCL_B");\n',
    "include/moeccl/b.h": "/* One word" + " and another" * 13 + ":\n *\n *   a  word" + " and another" * 13 + "\n *   b  x\n */\n",
    "docs/b.md": "`profile` and NCCL EP. What is that?\n\n| [EP](../README.md#words) | an MP group |\n",
    "examples/x/main.c": "int main(void) {\n  f();\n}\n",
}


class Exports(unittest.TestCase):
    def test_declared(self):
        with tempfile.NamedTemporaryFile("w", suffix=".h") as file:
            file.write(HEADER)
            file.flush()
            self.assertEqual(exports.declared([file.name]), ({"moecclOne", "moecclTwo"}, "3"))

    def test_problems(self):
        right = {("moecclOne", "MOECCL_3"), ("moecclTwo", "MOECCL_3")}
        names = {"moecclOne", "moecclTwo"}
        self.assertEqual(exports.problems(names, "3", right, "libmoeccl.so.3"), [])
        for symbols, soname, said in (
                (right - {("moecclTwo", "MOECCL_3")}, "libmoeccl.so.3", "moecclTwo is declared but not"),
                (right | {("_ZN6moeccl1fEv", "")}, "libmoeccl.so.3", "_ZN6moeccl1fEv is exported but no"),
                ({("moecclOne", ""), ("moecclTwo", "MOECCL_3")}, "libmoeccl.so.3", "has version none"),
                (right, "libmoeccl.so", "SONAME is libmoeccl.so instead"), (right, None, "SONAME is None")):
            found = exports.problems(names, "3", symbols, soname)
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])

    def test_internal(self):
        one, two = ("moecclOne", "MOECCL_MOE_3"), ("moecclTwo", "MOECCL_INTERNAL_3.1.0")

        def found(*symbols):
            return exports.problems({"moecclOne"}, "3", set(symbols), "libmoeccl-moe.so.3", "libmoeccl-moe",
                                    {"moecclTwo"})
        self.assertEqual(found(one, two), [])
        self.assertEqual(found(one), ["moecclTwo is declared but not exported"])
        self.assertIn("one of the release's own", found(one, ("moecclTwo", "MOECCL_MOE_3"))[0])

    def test_needed(self):
        library = next(path for path in ("/proc/self/exe", sys.executable) if os.path.exists(path))
        self.assertTrue(any(name.startswith("libc.so") for name in exports.dynamic(library, "NEEDED")))


class Files(unittest.TestCase):
    def problems(self, tree):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in tree.items():
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(text)
            return files.problems(folder)

    def test_problems(self):
        right = {"algorithms/a/ring.cc": "// A ring.\n", "algorithms/b/ring.cc": "// Another.\n", "src/x/a.h": "/* A. */\n",
                 "perf/a.h": "// A.\n", "src/bindings/x/a.h": "// A.\n", "src/x/a.py": "a()\n"}
        self.assertEqual(self.problems(right), [])
        for path, text, said in (
                ("src/x/b.cc", "#include <a>\n// A.\n", "src/x/b.cc does not begin with a comment"),
                ("tests/b.cu", "//\n", "tests/b.cu does not begin with a comment"),
                ("src/y/a.h", "// A.\n", "src/x/a.h and src/y/a.h have the same name"),
                ("kernels/ring.cc", "// A.\n", "and kernels/ring.cc have the same name")):
            found = self.problems({**right, path: text})
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])


class Headers(unittest.TestCase):
    def check(self, text):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "moeccl"))
            path = os.path.join(folder, "moeccl", "a.h")
            with open(path, "w") as file:
                file.write(text)
            return subprocess.run([sys.executable, headers.__file__, path, "--include", folder, "--cc", "cc",
                                   "--cxx", "c++"], capture_output=True).returncode

    def test_headers(self):
        struct = "#include <stddef.h>\ntypedef struct { size_t size; int a; } moecclAnyThing_t;\n"
        macro = "#define MOECCL_ANY_THING_INITIALIZER { sizeof(moecclAnyThing_t), %s }\n"
        guarded = "#ifndef A_H\n#define A_H\n%s#endif\n"
        self.assertEqual(self.check(guarded % (struct + macro % "0")), 0)
        for wrong in (struct, guarded % (struct + macro % ""), guarded % struct.replace("<stddef.h>", "<a>"),
                      guarded % "size_t f(void);\n", guarded % "int f();\n", guarded % "int class;\n",
                      guarded % "bool f(void);\n"):
            self.assertEqual(self.check(wrong), 1, wrong)


class Scripts(unittest.TestCase):
    def problems(self, tree):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in tree.items():
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o755)) as file:
                    file.write(text)
            return list(scripts.problems(folder))

    def test_problems(self):
        right = {"perf/scripts/a.py": "import os\nimport drawing\n", "perf/scripts/drawing.py": "import matplotlib\n",
                 "perf/README.md": "Do\n\n    perf/scripts/a.py --help\n"}
        self.assertEqual(self.problems(right), [])
        for path, text, said in (
                ("perf/scripts/a.py", "def f():\n    from matplotlib import pyplot\n", "a.py: imports matplotlib,"),
                ("perf/scripts/a.py", "import numpy.linalg\n", "a.py: imports numpy,"),
                ("perf/README.md", "    a.py --help\n", "a.py does not run; is it perf/scripts/a.py"),
                ("perf/README.md", "    perf/a.py\n", "perf/a.py does not run; is it perf/scripts/a.py"),
                ("README.md", "    perf/b.py\n", "perf/b.py does not run")):
            found = self.problems({**right, path: text})
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])

    def test_drawing_says_what_to_install(self):
        folder = os.path.join(HERE, "..", "..", "perf", "scripts")
        done = subprocess.run([sys.executable, "-c", "import sys\nsys.modules['matplotlib'] = None\n"
                               "import drawing\ndrawing.pyplot()"], cwd=folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt-get install python3-matplotlib", done.stderr)
        self.assertIn("pip install matplotlib", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Readme(unittest.TestCase):
    def problems(self, **changes):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in {**TREE, **changes}.items():
                path = os.path.join(folder, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(text)
            return list(readme.problems(folder))

    def test_what_is_short(self):
        for text in ("| call |\n|---|\n| `f(" + "a, " * 40 + "b)` |\n",  # the cells of a table of calls
                     "- One\n" + "  - a word and another\n" * 20,
                     "| " + "| ".join(["a word"] * 20) + " |\n\n  " + "| a | b |\n" * 20):
            self.assertEqual(self.problems(**{"docs/a.md": text}), [])

    def test_problems(self):
        self.assertEqual(self.problems(), [])
        for changes, said in (
                ({"src/c.cc": 'getenv("MOECCL_C");'}, "variable MOECCL_C is missing"),
                ({"src/b.h": ""}, "there is no variable MOECCL_B"),
                ({"include/moeccl/moeccl.h": TREE["include/moeccl/moeccl.h"].replace(
                    "moecclNum", "moecclOther = 1,\n  moecclNum")}, "result moecclOther is missing"),
                ({"examples/x/main.c": "g();\n"}, "no example has this code"),
                ({"README.md": README + "[c](src/c.cc)"}, "src/c.cc does not exist"),
                ({"README.md": README + "\nA word" + " and another" * 15 + "."}, "32 words"),
                ({"docs/a.md": "| a | A word" + " and another" * 15 + " |"}, "docs/a.md: a sentence has 32 words"),
                ({"docs/a.md": "- One\n  - a word" + " and another" * 15 + "\n  - two"}, "docs/a.md: a sentence has 32 words"),
                ({"docs/a.md": "Call `f(a, b); g(c, d)`" + " and another" * 15}, "docs/a.md: a sentence has 32 words"),
                ({"docs/a.md": "Layers without capacity.\n\n[EP](../README.md#words)"}, "docs/a.md: capacity stands before"),
                ({"docs/a.md": "Token routing.\n\n[EP](../README.md#words)"}, "docs/a.md: Token routing stands before"),
                ({"include/moeccl/a.h": "/* A word" + " and\n * another" * 15 + ". */"}, "include/moeccl/a.h: a sentence has 32 words"),
                ({"include/moeccl/a.h": "// A word.\n// Of\n// a word.\n"}, "a.h: a sentence hides what it is about"),
                ({"docs/a.md": "Where dogs are, cats are not."}, "docs/a.md: a sentence hides what it is about"),
                ({"docs/a.md": "One.\n\nOUTPUT_OF_IT2\n"}, "docs/a.md: this line is left from its making: OUTPUT_OF_IT2"),
                ({"docs/a.md": "<<<<<<< HEAD\n| a |\n"}, "docs/a.md: this line is left from its making: <<<<<<< HEAD"),
                ({"docs/a.md": "A profile.\n\n[EP](../README.md#words)"}, "docs/a.md: profile stands before"),
                ({"docs/a.md": "[c](../src/c.cc) [d](../src/a.cc)"}, "../src/c.cc does not exist"),
                ({"README.md": README + "\n## Beside what you use\n\n| 1.5 to 2.8 |\n", "perf/RESULTS.md": "1.5, 2.85, 12.8, 1.2.8.\n"},
                 "perf/RESULTS.md has no 2.8"),
                ({"README.md": README + "`tests/c.sh`"}, "tests/c.sh does not exist"),
                ({"README.md": README + "[c](include/ERRORS.md#gone)"}, "include/ERRORS.md has no heading #gone"),
                ({"docs/a.md": "[c](#gone)"}, "docs/a.md has no heading #gone"),
                ({"docs/a.md": "`moecclSuccess`, `moecclGone`"}, "no public header has moecclGone"),
                ({"tests/README.md": "\n| promise | test |\n|---|---|\n| it is told | `Death.IsTold`, `Death.*`, `IsTold`, `Death.IsKnown` |\n",
                  "tests/a_test.cc": "TEST_P(Death, IsTold) {}\n"},
                 "tests/README.md: no test has Death.IsKnown"),
                ({"docs/a.md": "`a.py`, a program:\n\n```python\na()\n```\n", "docs/a.py": "b()\n"}, "its a.py is not docs/a.py"),
                ({"docs/a.md": "`a.py` ([in x](../x/a.py)), a program:\n\n```python\na()\n```\n", "x/a.py": "b()\n"},
                 "its a.py is not x/a.py")):
            found = self.problems(**changes)
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])


class Versions(unittest.TestCase):
    RIGHT = {
        "meson.build": "project('m', 'c',\n  version: '1.2.3',\n  license: 'x')\n",
        "include/moeccl/moeccl.h": "#define MOECCL_MAJOR 1\n#define MOECCL_MINOR 2\n#define MOECCL_PATCH 3\n",
        "src/bindings/torch/pyproject.toml": 'name = "m"\nversion = "1.2.3"\nreadme = "README.md"\n',
        "perf/lab/__init__.py": 'VERSION = "1.2.3"\n',
        "CHANGELOG.md": "# Changelog\n\n## [1.2.3] - 2026-01-02\n\n## [1.2.2] - 2026-01-01\n",
        "README.md": "    moeccl-plan (moeccl) 1.2.3\n",
        "src/bindings/torch/README.md": "makes `moeccl-1.2.3.tar.gz`\n",
        "tests/install/abi/1.2.abi": "",
    }

    def problems(self, tag=None, **changes):
        with tempfile.TemporaryDirectory() as folder:
            if tag:
                git = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e"]
                for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "m"], ["tag", tag]):
                    subprocess.run(git + command, check=True)
            for path, text in {**self.RIGHT, **changes}.items():
                if text is not None:
                    os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                    with open(os.path.join(folder, path), "w") as file:
                        file.write(text)
            return list(versions.problems(folder))

    def test_problems(self):
        self.assertEqual(self.problems(), [])
        for path, text, said in (
                ("include/moeccl/moeccl.h", self.RIGHT["include/moeccl/moeccl.h"].replace("3", "4"), "moeccl.h: has 1.2.4, meson.build 1.2.3"),
                ("src/bindings/torch/pyproject.toml", 'version = "1.2.2"\n', "pyproject.toml: has 1.2.2"),
                ("perf/lab/__init__.py", 'VERSION = "1.2.2"\n', "__init__.py: has 1.2.2"),
                ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n", "CHANGELOG.md: has nothing like"),
                ("CHANGELOG.md", "## [1.2.2] - 2026-01-01\n\n## [1.2.3] - 2026-01-02\n", "CHANGELOG.md: has 1.2.2"),
                ("README.md", "    moeccl-plan (moeccl) 1.2.2\n", "README.md: has 1.2.2"),
                ("src/bindings/torch/README.md", "moeccl-1.2.2.tar.gz", "README.md: has 1.2.2"),
                ("tests/install/abi/1.2.abi", None, "abi/1.2.abi is missing")):
            found = self.problems(**{path: text})
            self.assertEqual(len(found), 1, found)
            self.assertIn(said, found[0])

    def test_a_tagged_version_has_a_date(self):
        coming = {"CHANGELOG.md": "# Changelog\n\n## [1.2.3] - not released\n"}
        self.assertEqual(self.problems(tag="v1.2.2", **coming), [])
        self.assertEqual(self.problems(tag="v1.2.3"), [])
        self.assertIn("there is a tag v1.2.3", "".join(self.problems(tag="v1.2.3", **coming)))


class Pages(unittest.TestCase):
    def silent(self, text, page="README.md"):
        return [command for _, command in pages_test.without_output(page, text)]

    def test_alike(self):
        for line, printed, share, right in (
                ("loss 0.45 (2 to 3)", "loss  7 ( 1 to 99)", None, True), ("loss 0.45", "lost 0.45", None, False),
                ("loss 0.045", "loss 0.046", 0, False), ("loss 0.045", "loss 0.045", 0, True),
                ("loss 0.05", "loss 0.06", 0.15, True), ("loss 0.05", "loss 0.07", 0.15, False),
                ("step 50", "step 51", 0.15, True), ("step 5", "step 6", 0.15, False)):
            self.assertEqual(pages_test.alike(line, printed, share), right, (line, printed, share))

    def test_without_output(self):
        command = "build/perf/moeccl-plan --list"
        for text in (f"    {command}\n\n    alltoall\n", f"    {command}\n\nprints\n\n    alltoall\n",
                     f"    {command}\n\nIts output stands in [another page](a.md).\n", "    export A=1\n",
                     "    cc program.c -o program\n", f"    {command} > file\n"):
            self.assertEqual(self.silent(text), [], text)
        for text in (f"    {command}\n", f"    {command}\n\nIt prints much.\n", f"    {command}\n\n## Next\n\n    alltoall\n",
                     f"    {command}\n\nprints\n\n    build/perf/moeccl-plan alltoall\n\n    0\n"):
            self.assertEqual(self.silent(text), [command], text)
        self.assertEqual(self.silent(f"## A\n\n| a | b |\n\n    {command}\n", "perf/RESULTS.md"), [])
        self.assertEqual(self.silent(f"| a | b |\n\n## A\n\n    {command}\n", "perf/RESULTS.md"), [command])


if __name__ == "__main__":
    unittest.main()
