#!/usr/bin/env python3
"""Tests the quickstart: its program on ranks of one host, and the script in an emulated cluster.

    test_quickstart.py --lab COMMAND --program FILE --script FILE --build FOLDER Program|Script

Exit code 77 where Script needs an emulated cluster and this machine permits none.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TEXT = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the age
of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light,
it was the season of Darkness, it was the spring of hope, it was the winter of despair, we had
everything before us, we had nothing before us.
"""
SMALL = ("--tokens", "13", "--embedding", "16", "--hidden", "8", "--iterations", "2", "--warm-up", "1")
ROW = re.compile(r"^(?P<schedule>baseline|S1) +(?P<algorithm>\w+) +(?P<median>[\d.]+) +"
                 r"\((?P<least>[\d.]+) to (?P<most>[\d.]+)\) +(?P<sent>(?:(?:[\d.]+ MB|-) +)+?)"
                 r"(?P<payload>[\d.]+) MB +(?P<uplink>\d+ %|-) +(?P<error>[\d.e+-]+|-?nan)(?P<wrong> +WRONG)?$",
                 re.MULTILINE)
NAMES = [("baseline", "linear"), ("baseline", "hierarchical"), ("S1", "flat"), ("S1", "dedup")]

GIVEN = None    # the arguments of this script
RUNTIME = None  # a folder of our own for labs, so that others are out of reach


def environment():
    return {**os.environ, "XDG_RUNTIME_DIR": RUNTIME, "OPENBLAS_NUM_THREADS": "1"}


def command(*arguments, **more):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True, timeout=240,
                          stdin=subprocess.DEVNULL, env={**environment(), **more})


def rows(output):
    return list(ROW.finditer(output))


def names(output):
    return [(row["schedule"], row["algorithm"]) for row in rows(output)]


class Program(unittest.TestCase):
    """Ranks of one host, told their nodes."""

    def setUp(self):
        self.text = os.path.join(RUNTIME, "text")
        with open(self.text, "w") as file:
            file.write(TEXT)

    def run_ranks(self, nodes, *arguments, **more):
        return command(GIVEN.lab, "run", "--emulate", nodes, "--no-prefix", "--", GIVEN.program, "--text",
                       self.text, *SMALL, *arguments, **more)

    def test_prints_a_row_for_each_schedule_and_algorithm(self):
        done = self.run_ranks("2x4")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(names(done.stdout), NAMES)
        for row in rows(done.stdout):
            self.assertEqual(set(row["sent"].split()), {"-"})
            self.assertTrue(0 < float(row["error"]) < 1e-5, row[0])
            self.assertTrue(float(row["least"]) <= float(row["median"]) <= float(row["most"]), row[0])
        self.assertIn("Fastest:", done.stdout)
        # The text in numbers, counted by hand: 4 MP groups of 13 words.
        words = re.sub(r"[^a-z]+", " ", TEXT.lower()).split()[:52]
        self.assertIn(f"52 words, {len(set(words))} different ones", done.stdout)

    def test_uneven_nodes_one_rank_and_other_grids(self):
        for nodes, arguments in (("3,1,2", ()), ("1x1", ()), ("3,2", ("--top-k", "1")),
                                 ("2x2", ("--esp", "4", "--mp", "1")),
                                 ("1,3", ("--ep", "4", "--mp", "4", "--capacity-factor", "0.5"))):
            with self.subTest(nodes=nodes):
                done = self.run_ranks(nodes, *arguments)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(names(done.stdout), NAMES)

    def test_other_algorithms(self):
        done = self.run_ranks("2x2", "--alltoall", "pairwise", "--dispatch", "dedup")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(names(done.stdout), [("baseline", "pairwise"), ("S1", "dedup")])

    def test_reports_what_differs_from_the_reference(self):
        # Single precision cannot match double precision exactly.
        done = self.run_ranks("2x2", "--tolerance", "0")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(names(done.stdout), NAMES)
        for row in rows(done.stdout):
            self.assertTrue(row["wrong"], row[0])
        for rank in range(4):
            self.assertIn(f"WRONG: S1 with flat, rank {rank}, pass 0: the output is off by", done.stdout)
        self.assertNotIn("Fastest:", done.stdout)

    def complaints(self, *arguments):
        done = self.run_ranks("2x2", *arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr

    def test_wrong_options_are_named(self):
        for arguments, message in (
                (("--tokens", "0"), '--tokens is "0"; it must be a whole number from 1'),
                (("--tokens", "9e9"), '--tokens is "9e9"'),
                (("--capacity-factor", "0"), "it must be a number above 0"),
                (("--tolerance", "nan"), "it must be a number from 0 on"),
                (("--uplink", "fast"), "as in 100mbit"),
                (("--seed",), "--seed needs a value"),
                (("--alltoall", "linear,none"), '--alltoall: "none" is none of linear, pairwise, hierarchical'),
                (("--dispatch", "auto"), '--dispatch: "auto" is none of flat, dedup'),
                (("--nonsense",), "there is no option --nonsense"),
                (("nonsense",), '"nonsense" is no option')):
            with self.subTest(arguments=arguments):
                self.assertIn(message, self.complaints(*arguments))

    def test_what_the_ranks_cannot_do_is_said_once(self):
        for arguments, message in (
                (("--tokens", "50"), "the text has 70 words, and 2 MP groups of 50 tokens need 100"),
                (("--mp", "3"), "--mp 3 must divide it"),
                (("--ep", "3"), "must be the number of ranks, 4"),
                (("--experts", "3"), "--experts 3 must be a multiple of --ep 2"),
                (("--text", "/no/such/file"), "cannot read --text /no/such/file")):
            with self.subTest(arguments=arguments):
                self.assertEqual(self.complaints(*arguments).count(message), 1)

    def test_environment_that_would_override_the_rows_is_refused(self):
        for variable, value in (("MOECCL_ALGO", "alltoall=linear"), ("MOECCL_SCHEDULE", "S1")):
            done = self.run_ranks("1x2", **{variable: value})
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn(variable + " is set", done.stderr)

    def test_script_without_an_emulated_cluster(self):
        # The repository as the script sees it, with a lab that cannot be brought up.
        with tempfile.TemporaryDirectory() as root:
            for folder in ("examples", "perf"):
                os.mkdir(os.path.join(root, folder))
            real = os.path.dirname(os.path.dirname(GIVEN.script))
            os.symlink(GIVEN.script, os.path.join(root, "examples", "quickstart.sh"))
            os.symlink(os.path.join(real, "tests"), os.path.join(root, "tests"))
            with open(os.path.join(root, "perf", "moeccl-lab"), "w") as file:
                file.write(f'#!/bin/sh\n[ "$1" = up ] && exit 3\nexec {GIVEN.lab} "$@"\n')
                os.fchmod(file.fileno(), 0o755)
            done = command(os.path.join(root, "examples", "quickstart.sh"), "--build", GIVEN.build, *SMALL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("No emulated cluster here", done.stdout)
        self.assertEqual(names(done.stdout), NAMES)
        for row in rows(done.stdout):
            self.assertEqual(row["sent"].split(), ["-", "-"])


class Script(unittest.TestCase):
    """All of it, in a lab. Nothing is left behind."""

    def tearDown(self):
        self.assertEqual(os.listdir(RUNTIME), [])

    def script(self, *arguments):
        return [GIVEN.script, "--build", GIVEN.build, *arguments]

    def test_counts_what_it_predicts(self):
        done = command(*self.script("--tokens", "128", "--iterations", "2", "--uplink", "1gbit"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(names(done.stdout), NAMES)
        for row in rows(done.stdout):
            payload = float(row["payload"])
            for sent in row["sent"].split()[::2]:
                # Headers and acknowledgements are some per cent of messages this small.
                self.assertTrue(payload < float(sent) < 1.1 * payload, row[0])
            self.assertRegex(row["uplink"], "%")
        self.assertIn("nodes and switch agree", done.stdout)

    def test_wrong_results_are_the_scripts_exit_code(self):
        done = command(*self.script("--tokens", "16", "--iterations", "1", "--tolerance", "0"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("WRONG", done.stdout)

    def test_wrong_options(self):
        for arguments, message in ((("--tokens",), "--tokens needs a value"),
                                   (("--nodes=0",), "--nodes 0: give 1 to 250"),
                                   (("--uplink", "10"), "--uplink is"),
                                   (("--check", "1"), "there is no option --check"),
                                   (("--text", "/no/such/file"), "there is no such file"),
                                   (("nonsense",), '"nonsense" is no option')):
            with self.subTest(arguments=arguments):
                done = command(*self.script(*arguments))
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertIn(message, done.stderr)

    def test_a_signal_takes_the_cluster_down(self):
        running = subprocess.Popen(self.script("--iterations", "100000"), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                   env=environment())
        while not (line := running.stdout.readline()).startswith("Running"):
            self.assertTrue(line, "ended before it began")
        begun = time.monotonic()
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
        self.assertEqual(running.returncode, 143)
        self.assertLess(time.monotonic() - begun, 30)


def main():
    global GIVEN, RUNTIME
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("lab", "program", "script", "build"):
        parser.add_argument("--" + name, required=True, type=os.path.realpath)
    parser.add_argument("what", choices=("Program", "Script"))
    GIVEN = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moeccl-quickstart-test-") as RUNTIME:
        if GIVEN.what == "Script":
            probe = command(GIVEN.lab, "up", "--nodes", 2, "--uplink", "1gbit")
            command(GIVEN.lab, "down")
            if probe.returncode == 3:
                print("skipped: " + probe.stderr, file=sys.stderr)
                return 77
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(globals()[GIVEN.what])
        return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
