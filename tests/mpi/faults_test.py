#!/usr/bin/env python3
"""Runs MPI programs that come in moeccl's way under moeccl-mpi, and compares what becomes of them with MPI alone.

    faults_test.py ABI MOECCL_MPI FAULTS COMMAND...

ABI is openmpi or mpich, FAULTS is faults.c for it, COMMAND starts ranks.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ABI = SHIM = FAULTS = None
LAUNCHER = []
# MPICH's ranks poll without a pause, so they must not outnumber the cores by much.
RANKS = {"openmpi": 4, "mpich": 2}


def run(case, *arguments, ranks=None, limit=None, served=True, **environment):
    """The exit code, what was printed, and the calls of each collective that moeccl served."""
    program = [SHIM, FAULTS, case, *arguments] if served else [FAULTS, case, *arguments]
    if limit:
        program = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *program]
    done = subprocess.run([*LAUNCHER, "-n", str(ranks or RANKS[ABI]), *program], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, "MOECCL_MPI_TRIALS": "0", **environment})
    text = done.stdout + done.stderr
    return done.returncode, text, {name: int(count) for name, count in re.findall(r"moeccl-mpi: (\w+): (\d+) of", text)}


class Communicators(unittest.TestCase):
    def test_share_connections(self):
        code, text, served = run("splits")
        self.assertEqual(code, 0, text)
        # Of the 40 every third has half of the ranks, and of two ranks each is left alone.
        self.assertEqual(served["alltoall"], 1 + (40 * 3 + 20 * 6 if RANKS[ABI] > 2 else 26 * 3 + 13 * 6), text)

    def test_that_make_few_calls_join_where_that_costs_little(self):
        code, text, served = run("come_and_go")
        self.assertEqual(code, 0, text)
        self.assertEqual(served["alltoall"], 80 * 3, text)
        # With trials connections are opened for 30 calls of the same ranks.
        code, text, served = run("come_and_go", MOECCL_MPI_TRIALS="1")
        self.assertEqual(code, 0, text)
        self.assertIn(served["alltoall"], range(1, 80 * 3), text)

    @unittest.skipIf(sys.argv[1:2] == ["mpich"], "it takes a minute")
    def test_are_left_to_mpi_where_they_are_too_many(self):
        code, text, served = run("many", ranks=2)
        self.assertEqual(code, 0, text)
        self.assertEqual(served["alltoall"], 256 * 2, text)

    @unittest.skipIf(sys.argv[1:2] == ["mpich"], "MPICH needs other descriptors")
    def test_are_left_to_mpi_where_descriptors_are_too_few(self):
        for limit in range(18, 29):
            with self.subTest(limit):
                code, text, served = run("dups", limit=limit)
                self.assertEqual(code, 0, text)
                self.assertEqual(text.count("MPI goes on alone"), 4, text)
                self.assertEqual(served["alltoall"], 0, text)

    @unittest.skipIf(os.cpu_count() < 4 and sys.argv[1:2] == ["mpich"], "MPICH's ranks poll without a pause")
    def test_of_too_many_sets_of_ranks_are_left_to_mpi(self):
        code, text, served = run("sets", ranks=4)
        self.assertEqual(code, 0, text)
        # Rank 0's are those of ranks 0 1, 0 2, 0 3, 0 1 2: all of its calls but with ranks 0 1 3, 0 2 3 and all.
        self.assertEqual(served["alltoall"], 4 * 3, text)


class Arguments(unittest.TestCase):
    def test_that_mpi_refuses_end_the_call_on_all_ranks_as_mpi_ends_it(self):
        # Of more than two ranks some would wait in MPI for others that it has sent away.
        code, text, _ = run("mistakes", ranks=2)
        self.assertEqual(code, 0, text)

    def test_end_the_job_by_the_handler_that_mpi_begins_with(self):
        code, text, _ = run("fatal")
        self.assertNotEqual(code, 0, text)
        if ABI == "openmpi":
            self.assertEqual(code, run("fatal", served=False)[0], text)
        # Open MPI's mpirun sometimes cannot read what a rank that aborts tells it, and says so in these words.
        if "ORTE_ERROR_LOG: Data unpack" not in text:
            self.assertRegex(text, "MPI_ERR_TYPE|Invalid datatype|[Dd]atatype has not been committed")

    def test_of_a_rank_without_elements(self):
        code, text, served = run("no_elements")
        self.assertEqual(code, 0, text)
        self.assertGreater(served["alltoallv"], 0, text)

    def test_with_elements_that_are_too_large(self):
        code, text, _ = run("large_element", ranks=2)
        self.assertEqual(code, 0, text)
        self.assertIn("elements of 3221225472 bytes that are not contiguous", text)

    def test_of_requests(self):
        code, text, served = run("requests")
        self.assertEqual(code, 0, text)
        self.assertGreater(served["ialltoall"], 1, text)


class Waits(unittest.TestCase):
    def test_that_are_long_are_told_and_go_on(self):
        code, text, served = run("late", ranks=2)
        self.assertEqual(code, 0, text)
        self.assertEqual(served["alltoall"], 7, text)
        told = re.findall(r"^moeccl-mpi: rank (\d): has waited for 1\d s in alltoall of 4 bytes.*", text, re.MULTILINE)
        self.assertEqual(told, ["0"], text)
        self.assertIn("MOECCL_TIMEOUT=10000", text)


class Report(unittest.TestCase):
    """Says why calls have stayed with MPI."""
    FLOATS = "40 sums or products of floats stayed with MPI; MOECCL_MPI_FLOAT_SUMS=1 lets moeccl try them"
    TOO_FEW = "no connections were opened: too few calls of the same ranks"

    def test_of_sums_of_floats(self):
        code, text, _ = run("float_sums")
        self.assertEqual(code, 0, text)
        self.assertIn("moeccl-mpi: allreduce: 0 of 40 calls served by moeccl", text)
        for name in ("allreduce", "reduce_scatter"):
            self.assertIn(f"moeccl-mpi: {name}: {self.FLOATS}", text)
        self.assertNotIn(self.TOO_FEW, text)

    def test_of_sums_that_may_be_served(self):
        code, text, served = run("float_sums", MOECCL_MPI_FLOAT_SUMS="1")
        self.assertEqual(code, 0, text)
        self.assertGreater(served["allreduce"], 30, text)
        self.assertNotIn("floats", text)

    def test_of_too_few_calls_beside_sums_of_floats(self):
        code, text, _ = run("few_maxima")
        self.assertEqual(code, 0, text)
        self.assertIn(f"moeccl-mpi: allreduce: {self.FLOATS}", text)
        self.assertIn(self.TOO_FEW, text)


class Folders(unittest.TestCase):
    def test_that_ld_so_would_cut(self):
        for name in ("a b", "a:b"):
            with self.subTest(name), tempfile.TemporaryDirectory() as parent:
                folder = os.path.join(parent, name)
                os.mkdir(folder)
                library = os.path.join(folder, f"libmoeccl-mpi-{ABI}.so")
                with open(library, "w", encoding="utf-8"):
                    pass
                program = shutil.copy(SHIM, folder)
                done = subprocess.run([program, "--abi", ABI, "true"], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(library + ": LD_PRELOAD takes no path with a space or a colon", done.stderr)


if __name__ == "__main__":
    ABI, SHIM, FAULTS, *LAUNCHER = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
