#!/usr/bin/env python3
"""Tests tests/tally.py on logs as Meson writes them."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TALLY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "tally.py")

GTEST = ["a_test", "--gtest_output=xml:a.xml"]
SUITE = '<testsuite name="moeccl.moeccl:unit / {}">{}</testsuite>'
PASS, FAIL = '<testcase name="p"/>', '<testcase name="f"><failure/></testcase>'
SKIP = '<testcase name="s"><skipped/></testcase>'


def tally(tests, suites, env={}, printed="", whole=False):
    """What tally.py counts and its exit code, or with `whole` all lines before the counts, and them.

    tests: (name, result, command); suites: (name after the project's, cases); each test printed `printed`.
    """
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "testlog-default.json"), "w") as file:
            for name, result, command in tests:
                file.write(json.dumps({"name": f"moeccl:unit / {name}", "result": result,
                                       "command": command, "env": env, "stdout": printed}) + "\n")
        with open(os.path.join(folder, "testlog-default.junit.xml"), "w") as file:
            file.write("<testsuites>" + "".join(SUITE.format(*suite) for suite in suites) + "</testsuites>")
        run = subprocess.run([sys.executable, TALLY, folder], capture_output=True, text=True)
        *lines, counts = run.stdout.splitlines()
        named = [line for line in lines if not line.startswith("  ")]
        assert len(named) == sum(int(word) for word in counts.split()[2::2]), run.stdout
        return (lines, counts) if whole else (counts, run.returncode)


class TallyTest(unittest.TestCase):
    def test_counts_cases(self):
        self.assertEqual(
            tally([("a", "OK", GTEST), ("tap", "OK", ["t"]), ("plain", "OK", ["p"]), ("none", "SKIP", ["n"])],
                  [("a.One", PASS + PASS + SKIP), ("a.Two/0", PASS), ("tap", PASS + PASS)]),
            ("6 passed, 0 failed, 2 skipped", 0))

    def test_failed_case(self):
        self.assertEqual(tally([("a", "FAIL", GTEST)], [("a.One", PASS + FAIL + FAIL)]),
                         ("1 passed, 2 failed, 0 skipped", 1))

    def test_failure_outside_of_cases(self):
        for result in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT", "UNEXPECTEDPASS"):
            self.assertEqual(tally([("a", result, GTEST)], [("a.One", PASS)]),
                             ("1 passed, 1 failed, 0 skipped", 1))
            self.assertEqual(tally([("a", result, GTEST), ("b", result, ["b"])], []),
                             ("0 passed, 2 failed, 0 skipped", 1))

    def test_says_why(self):
        failure = '<testcase name="f"><failure message="a.cc:7&#10;no"/></testcase>'
        self.assertEqual(tally([("a", "FAIL", GTEST)], [("a.One", PASS + failure)], whole=True)[0],
                         ["failed: moeccl:unit / a: f: a.cc:7", "  no"])
        printed = "".join(f"line {n}\n" for n in range(50))
        lines = tally([("a", "TIMEOUT", ["a"])], [], printed=printed, whole=True)[0]
        self.assertEqual(lines[0], "failed: moeccl:unit / a: TIMEOUT")
        self.assertEqual(lines[-1], "  line 49")
        self.assertLess(len(lines), 20)

    def test_no_case_is_a_failure(self):
        self.assertEqual(tally([("a", "OK", GTEST), ("b", "OK", ["b"])], []),
                         ("1 passed, 1 failed, 0 skipped", 1))
        self.assertEqual(tally([("a", "OK", GTEST), ("b", "OK", ["b"])], [], {"GTEST_FILTER": "-*ucx*"}),
                         ("1 passed, 0 failed, 1 skipped", 0))

    def test_nothing_ran(self):
        self.assertEqual(tally([], []), ("0 passed, 0 failed, 0 skipped", 1))
        self.assertEqual(tally([("a", "SKIP", ["a"])], []), ("0 passed, 0 failed, 1 skipped", 1))

    def test_names_that_begin_alike(self):
        self.assertEqual(tally([("a", "OK", GTEST), ("a.b", "OK", GTEST)],
                               [("a.One", PASS), ("a.b.One", PASS + PASS)]),
                         ("3 passed, 0 failed, 0 skipped", 0))


if __name__ == "__main__":
    unittest.main()
