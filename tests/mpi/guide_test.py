#!/usr/bin/env python3
"""Runs the command of the guide of moeccl-mpi as it is written there, and its options.

    guide_test.py GUIDE MOECCL_MPI

The guide's ./program is one of 4000 calls of MPI_Alltoall. Exit code 77 where Open MPI is not installed.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
  int rank, ranks, from, round;
  const char* rounds = getenv("ROUNDS");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int* sent = malloc(ranks * sizeof *sent);
  int* received = malloc(ranks * sizeof *received);
  for (round = 0; round < (rounds ? atoi(rounds) : 4000); ++round) {
    for (from = 0; from < ranks; ++from) sent[from] = 100 * rank + from + round;
    MPI_Alltoall(sent, 1, MPI_INT, received, 1, MPI_INT, MPI_COMM_WORLD);
    for (from = 0; from < ranks; ++from)
      if (received[from] != 100 * from + rank + round) MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (rank == 0) printf("argc %d\n", argc);
  return MPI_Finalize();
}
"""
# One host with fewer cores than ranks, as root.
HOST = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader"}
GUIDE = SHIM = None


class Guide(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(GUIDE, encoding="utf-8") as file:
            cls.text = file.read()
        blocks = re.findall(r"(?:^    .*\n)+", cls.text, re.MULTILINE)
        cls.command, printed = (block.strip() for block in blocks[:2])
        cls.printed = printed.splitlines()[0]
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with open(os.path.join(cls.folder, "program.c"), "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        subprocess.run(["mpicc.openmpi", "-O1", "program.c", "-o", "program"], cwd=cls.folder, check=True)

    def run_guide(self, **options):
        words = shlex.split(self.command)
        self.assertEqual((words[0], words[3:5]), ("mpirun", ["moeccl-mpi", "./program"]))
        words[0] = "mpirun.openmpi"
        path = os.path.dirname(SHIM) + os.pathsep + os.environ["PATH"]
        done = subprocess.run(words, cwd=self.folder, env={**os.environ, **HOST, "PATH": path, **options}, timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("argc 2", done.stdout)  # "arguments" arrived
        return done.stderr

    def test_its_command(self):
        pattern = re.sub(r"\b\d+ of", r"(\\d+) of", self.printed)
        errors = self.run_guide()
        served = re.search(pattern, errors)
        self.assertTrue(served, pattern)
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
        self.assertIn("no connections were opened", self.run_guide(ROUNDS="20"))

    def test_what_means_nothing_is_told_and_serves_nothing(self):
        for options in ({"MOECCL_MPI": "alltoal"}, {"MOECCL_MPI_TRIALS": "x"}, {"MOECCL_MPI_TRIALS": "-1"}):
            with self.subTest(options):
                errors = self.run_guide(**options)
                for name, value in options.items():
                    self.assertIn(f'{name} has "{value}"; it must be', errors)
                self.assertNotRegex(errors, r"calls served")

    def test_its_options(self):
        named = set(re.findall(r"^\| `(MOECCL_MPI\w*)=", self.text, re.MULTILINE))
        self.assertEqual(named, {"MOECCL_MPI", "MOECCL_MPI_TRIALS", "MOECCL_MPI_FLOAT_SUMS", "MOECCL_MPI_REPORT"})
        for options, said in (({"MOECCL_MPI": "0"}, None), ({"MOECCL_MPI": "allgather"}, None),
                              ({"MOECCL_MPI_REPORT": "0"}, None),
                              ({"MOECCL_MPI": "alltoall,allgather", "MOECCL_MPI_TRIALS": "0"}, "3997 of 4000")):
            with self.subTest(options):
                errors = self.run_guide(**options)
                if said:
                    self.assertIn(said, errors)
                else:
                    self.assertNotRegex(errors, r"moeccl-mpi: alltoall: [1-9]")


if __name__ == "__main__":
    if not shutil.which("mpirun.openmpi") or not shutil.which("mpicc.openmpi"):
        sys.exit(77)
    SHIM, GUIDE = (os.path.abspath(sys.argv.pop()) for _ in range(2))
    unittest.main()
