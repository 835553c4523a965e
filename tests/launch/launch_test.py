#!/usr/bin/env python3
"""Tests examples/common/launch.h: ranks that are started as each launcher starts them, and wrong variables.

    launch_test.py PROGRAM

PROGRAM is examples/01_alltoall: it joins, and checks what the others have sent.
"""
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = None
RANKS = 3
KNOWN = ("MOECCL_", "OMPI_", "PMI_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "MASTER_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(KNOWN) or name == "MOECCL_PROBE"}

# Each launcher's variables of rank and size, and what else tells the ranks where they meet.
LAUNCHERS = {
    "moeccl-lab": ("MOECCL_RANK", "MOECCL_NRANKS", {"MOECCL_ID_FILE": "id"}),
    "torchrun": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "PORT"}),
    "torchrun with its agent's store": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "localhost", "MASTER_PORT": "PORT",
                                                               "TORCHELASTIC_USE_AGENT_STORE": "True"}),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"OMPI_MCA_ess_base_jobid": "4711"}),
    "MPICH": ("PMI_RANK", "PMI_SIZE", {"MOECCL_ID_FILE": "id"}),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3"}),
}

# Variables of a process, and what it must say of them.
WRONG = {
    "a rank that is no number": ({"RANK": "one", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "id"}, 'RANK is "one"'),
    "a negative size": ({"RANK": "0", "WORLD_SIZE": "-2", "MOECCL_ID_FILE": "id"}, 'WORLD_SIZE is "-2"'),
    "a rank without a size": ({"MOECCL_RANK": "0", "MOECCL_ID_FILE": "id"}, "MOECCL_NRANKS is not set"),
    "a file without a rank": ({"MOECCL_ID_FILE": "id"}, "MOECCL_RANK is not set"),
    "nowhere to meet": ({"RANK": "0", "WORLD_SIZE": "2"}, "set MASTER_ADDR and MASTER_PORT"),
    "no port": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "http"}, 'MASTER_PORT is "http"'),
    "a port above all": ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "65535"}, "1 to 65534"),
    "a file of another run": ({"RANK": "0", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "old"}, "each run needs a new one"),
    "a file that holds no id": ({"RANK": "1", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "old"}, "holds no unique id"),
    "a path too long": ({"RANK": "0", "WORLD_SIZE": "2", "MOECCL_ID_FILE": 5000 * "x"}, "too long a path"),
    "a rank beyond the size": ({"RANK": "2", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "id"}, "RANK is 2; it must be below WORLD_SIZE"),
    "no ranks": ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK is 0; it must be below WORLD_SIZE"),
}


def free_port():
    """A port that is free with the one above it, and that no connection gets by itself."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("", port))
                two.bind(("", port + 1))
            except OSError:
                continue
            return str(port)


class Launch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, variables):
        return subprocess.Popen([PROGRAM], cwd=self.folder, env={**CLEAN, **variables}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def test_every_launcher(self):
        for launcher, (rank, size, more) in LAUNCHERS.items():
            with self.subTest(launcher):
                port = free_port()
                more = {name: port if value == "PORT" else value for name, value in more.items()}
                ranks = [self.start({rank: str(i), size: str(RANKS), **more}) for i in range(RANKS)]
                for i, process in enumerate(ranks):
                    output, errors = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, 0, f"rank {i}: {errors}")
                    self.assertEqual(output.count("from rank"), RANKS)
                self.assertEqual(os.listdir(self.folder), [])

    def test_the_first_launcher_of_the_table_counts(self):
        both = {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
        output, errors = self.start(both).communicate(timeout=60)
        self.assertEqual(output.count("from rank"), 1, errors)

    def test_without_a_launcher_one_rank(self):
        output, errors = self.start({}).communicate(timeout=60)
        self.assertEqual(output.count("from rank"), 1, errors)

    def test_strangers_at_the_port_get_nothing(self):
        port = free_port()
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        first = self.start({"RANK": "0", **variables})
        self.addCleanup(first.kill)
        for _ in range(600):
            try:
                stranger = socket.create_connection(("127.0.0.1", int(port)), 5)
                break
            except OSError:
                self.assertIsNone(first.poll())
                time.sleep(0.02)
        with stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: rank 0\r\n\r\n")
            try:
                self.assertEqual(stranger.recv(100), b"")
            except ConnectionResetError:
                pass
        second = self.start({"RANK": "1", **variables})
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)

    def test_what_is_wrong_is_said(self):
        for what, (variables, said) in WRONG.items():
            with self.subTest(what):
                with open(os.path.join(self.folder, "old"), "w", encoding="utf-8") as file:
                    file.write("nothing")
                process = self.start(variables)
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertIn(said, errors)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
