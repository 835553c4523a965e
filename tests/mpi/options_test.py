#!/usr/bin/env python3
"""Runs a program of 4000 calls of MPI_Alltoall under moeccl-mpi with each option, and reads what moeccl-mpi reports.

    options_test.py GUIDE MOECCL_MPI SMALL_ALLTOALLS

GUIDE must name all options. SMALL_ALLTOALLS is small_alltoalls.c. Exit code 77 where Open MPI is not installed.
"""
import os
import re
import shutil
import subprocess
import sys
import unittest

# One host with fewer cores than ranks, as root.
HOST = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}
GUIDE = SHIM = PROGRAM = None


class Options(unittest.TestCase):
    def report(self, **options):
        done = subprocess.run(["mpirun.openmpi", "-np", "16", SHIM, PROGRAM, "arguments"], env={**os.environ, **HOST, **options}, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("argc 2", done.stdout)  # "arguments" arrived
        return done.stderr

    def test_none(self):
        errors = self.report()
        served = re.search(r"^moeccl-mpi: alltoall: (\d+) of 4000 calls served by moeccl$", errors, re.MULTILINE)
        self.assertTrue(served, errors)
        self.assertIn(int(served[1]), range(5, 4000))
        # Why: the faster of two, and by how much.
        shown = re.findall(r"^moeccl-mpi: alltoall of \d+ \w+ to \d+ \w+: (moeccl|MPI) is (\d+\.\d\d) times as fast as (MPI|moeccl)(.*)$",
                           errors, re.MULTILINE)
        self.assertTrue(shown, errors)
        for faster, times, slower, rest in shown:
            self.assertNotEqual(faster, slower)
            self.assertGreaterEqual(float(times), 1)
            self.assertEqual("MPI serves them" in rest, faster == "MPI" or float(times) < 1.03, errors)

    def test_no_connections_are_told(self):
        self.assertIn("no connections were opened", self.report(ROUNDS="20"))

    def test_what_means_nothing_is_told_and_serves_nothing(self):
        for options in ({"MOECCL_MPI": "alltoal"}, {"MOECCL_MPI_TRIALS": "x"}, {"MOECCL_MPI_TRIALS": "-1"}):
            with self.subTest(options):
                errors = self.report(**options)
                for name, value in options.items():
                    self.assertIn(f'{name} has "{value}"; it must be', errors)
                self.assertNotRegex(errors, r"calls served")

    def test_those_of_the_guide(self):
        with open(GUIDE, encoding="utf-8") as file:
            named = set(re.findall(r"^\| `(MOECCL_MPI\w*)=", file.read(), re.MULTILINE))
        self.assertEqual(named, {"MOECCL_MPI", "MOECCL_MPI_TRIALS", "MOECCL_MPI_FLOAT_SUMS", "MOECCL_MPI_REPORT"})
        for options, said in (({"MOECCL_MPI": "0"}, None), ({"MOECCL_MPI": "allgather"}, None),
                              ({"MOECCL_MPI_REPORT": "0"}, None),
                              ({"MOECCL_MPI": "alltoall,allgather", "MOECCL_MPI_TRIALS": "0"}, "3997 of 4000")):
            with self.subTest(options):
                errors = self.report(**options)
                if said:
                    self.assertIn(said, errors)
                else:
                    self.assertNotRegex(errors, r"moeccl-mpi: alltoall: [1-9]")


if __name__ == "__main__":
    if not shutil.which("mpirun.openmpi"):
        sys.exit(77)
    PROGRAM, SHIM, GUIDE = (os.path.abspath(sys.argv.pop()) for _ in range(3))
    unittest.main()
