#!/usr/bin/env python3
"""Tests moecclCommInitEnv: ranks that are started as each launcher starts them, and wrong variables.

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
KNOWN = ("MOECCL_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "MASTER_")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(KNOWN) or name == "MOECCL_PROBE"}

# Each launcher's variables of rank and size, and what else tells the ranks where they meet.
LAUNCHERS = {
    "moeccl-lab": ("MOECCL_RANK", "MOECCL_NRANKS", {"MOECCL_ID_FILE": "id"}),
    "torchrun": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "PORT", "MOECCL_SECRET": "s"}),
    "torchrun with its agent's store": ("RANK", "WORLD_SIZE", {"MASTER_ADDR": "localhost", "MASTER_PORT": "PORT",
                                                               "TORCHELASTIC_USE_AGENT_STORE": "True", "MOECCL_TRUSTED_NETWORK": "1"}),
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
    "a path too long": ({"RANK": "0", "WORLD_SIZE": "2", "MOECCL_ID_FILE": 5000 * "x"}, "File name too long"),
    "a rank beyond the size": ({"RANK": "2", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "id"}, "RANK is 2; it must be below WORLD_SIZE"),
    "a server of PMIx's alone": ({"PMIX_RANK": "0"}, "PMIX_RANK is set, and no variable tells the number of ranks"),
    "a rank of torchrun's without a size": ({"RANK": "0", "WORLD_SIZE": ""}, "RANK is set, and WORLD_SIZE is not set"),
    "a rank of Open MPI's without a size": ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not set"),
    "a link": ({"RANK": "1", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "link"}, "is no regular file"),
    "a pipe": ({"RANK": "1", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "pipe"}, "is no regular file"),
    "neither a secret nor trust": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "4711"}, "set MOECCL_SECRET"),
    "trust that is no number": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "4711",
                                 "MOECCL_TRUSTED_NETWORK": "yes"}, 'MOECCL_TRUSTED_NETWORK is "yes"'),
    "a port that others have": ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "TAKEN",
                                 "MOECCL_SECRET": "s"}, "Address already in use"),
    "a folder that is not there": ({"RANK": "0", "WORLD_SIZE": "2", "MOECCL_ID_FILE": "a/b"}, "cannot write MOECCL_ID_FILE a/b: No such"),
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

    def start(self, variables, command=None, **more):
        return subprocess.Popen(command or [PROGRAM], cwd=self.folder, env={**CLEAN, **variables}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **more)

    def write_old(self):
        """What may be in the place of an id."""
        with open(os.path.join(self.folder, "old"), "w", encoding="utf-8") as file:
            file.write("nothing")
        if not os.path.exists(os.path.join(self.folder, "link")):
            os.symlink("old", os.path.join(self.folder, "link"))
            os.mkfifo(os.path.join(self.folder, "pipe"))

    def lines_of(self, process, said):
        """Reads its errors up to a line that has this text."""
        lines = []
        for line in process.stderr:
            lines.append(line)
            if said in line:
                return lines
        self.fail(f"{said!r} is not in {lines}")

    def wait_for(self, name):
        """The path of a file in the folder, once it is there."""
        path = os.path.join(self.folder, name)
        for _ in range(3000):
            if os.path.exists(path):
                return path
            time.sleep(0.01)
        self.fail(f"there is no {path}")

    def end(self, process):
        process.kill()
        process.communicate()

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
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MOECCL_SECRET": "s"}
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
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: rank 0\r\nUser-Agent: a stranger\r\n\r\n")
            try:
                self.assertEqual(stranger.recv(100), b"")
            except ConnectionResetError:
                pass
        second = self.start({"RANK": "1", **variables})
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)

    def test_who_waits_says_for_whom(self):
        port = free_port()
        other = free_port()
        waiting = {
            "rank 0 of 16, by SLURM_PROCID and SLURM_NTASKS, waits for the others to join":
                {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "1"},
            "rank 2 of 3, by PMI_RANK and PMI_SIZE, waits for rank 0 to write MOECCL_ID_FILE id":
                {"PMI_RANK": "2", "PMI_SIZE": "3", "MOECCL_ID_FILE": "id"},
            "rank 0 of 3, by RANK and WORLD_SIZE, waits for the others to join":
                {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MOECCL_SECRET": "s"},
            f"rank 1 of 2, by RANK and WORLD_SIZE, waits for rank 0 to answer at 127.0.0.1, port {other}, or others to join":
                {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": other, "MOECCL_SECRET": "s"},
        }
        for said, process in [(said, self.start(variables)) for said, variables in waiting.items()]:
            self.addCleanup(self.end, process)
            self.lines_of(process, said)

    def test_an_id_of_a_run_that_has_ended_is_none(self):
        variables = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "1"}
        killed = self.start({"SLURM_PROCID": "0", **variables})
        path = self.wait_for("moeccl-id.1.0")
        # Rank 0 writes it whole, and lives: nobody takes its place.
        another = self.start({"SLURM_PROCID": "0", **variables})
        _, errors = another.communicate(timeout=60)
        self.assertEqual(another.returncode, 1)
        self.assertIn("each run needs a new one. Remove it if its run has ended", errors)
        self.end(killed)
        self.assertTrue(os.path.exists(path))
        second = self.start({"SLURM_PROCID": "1", **variables})
        self.lines_of(second, "which is still that of a run that has ended")
        first = self.start({"SLURM_PROCID": "0", **variables})
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(os.listdir(self.folder), [])

    def test_an_id_is_for_its_user_alone(self):
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        variables = {"MOECCL_NRANKS": "2", "MOECCL_ID_FILE": "id"}
        first = self.start({"MOECCL_RANK": "0", **variables})
        path = self.wait_for("id")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.end(first)
        if os.geteuid() != 0:
            self.skipTest("only root can give it to another user")
        os.chown(path, 65534, 65534)
        for rank in ("0", "1"):
            process = self.start({"MOECCL_RANK": rank, **variables})
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)
            self.assertIn("belongs to user 65534, and this rank to user 0; all ranks must be of one user", errors)

    def test_an_id_of_another_user_is_refused_where_it_cannot_be_read_either(self):
        if os.geteuid() != 0:
            self.skipTest("only root can be another user")
        variables = {"MOECCL_NRANKS": "2", "MOECCL_ID_FILE": "id"}
        first = self.start({"MOECCL_RANK": "0", **variables})
        self.addCleanup(self.end, first)
        self.wait_for("id")
        os.chmod(self.folder, 0o755)
        try:
            second = self.start({"MOECCL_RANK": "1", **variables}, user=65534)
        except PermissionError:
            self.skipTest("another user cannot start the program")
        _, errors = second.communicate(timeout=60)
        if "error while loading shared libraries" in errors:
            self.skipTest("another user cannot load the library")
        self.assertIn("belongs to user 0, and this rank to user 65534; all ranks must be of one user", errors)

    def test_an_id_is_written_through_no_link(self):
        """Not where somebody who knows the process's number has laid one."""
        variables = {"MOECCL_NRANKS": "2", "MOECCL_ID_FILE": "id"}
        first = self.start({"MOECCL_RANK": "0", **variables},
                           command=["sh", "-c", 'ln -s victim "id.$$"; ln -s victim id.new; exec "$0"', PROGRAM])
        second = self.start({"MOECCL_RANK": "1", **variables})
        for process in (first, second):
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([f"id.{first.pid}", "id.new"]))

    def test_empty_variables_are_not_set(self):
        empty = {name: "" for name in ("MOECCL_RANK", "MOECCL_NRANKS", "MOECCL_ID_FILE", "PMIX_RANK", "SLURM_PROCID")}
        output, errors = self.start(empty).communicate(timeout=60)
        self.assertEqual(output.count("from rank"), 1, errors)
        port = free_port()
        more = {**empty, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MOECCL_SECRET": "s"}
        ranks = [self.start({"RANK": str(i), **more}) for i in range(2)]
        for process in ranks:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)

    def test_who_has_another_secret_is_let_in_nowhere(self):
        port = free_port()
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MOECCL_TIMEOUT": "3000"}
        first = self.start({"RANK": "0", "MOECCL_SECRET": "s", **variables})
        for secret in ({"MOECCL_SECRET": "t"}, {"MOECCL_TRUSTED_NETWORK": "1"}):
            _, errors = self.start({"RANK": "1", **secret, **variables, "MOECCL_TIMEOUT": "1000"}).communicate(timeout=60)
            self.assertIn("another rendezvous listens there", errors)
        _, errors = first.communicate(timeout=60)
        self.assertEqual(first.returncode, 1)
        self.assertIn("rank 1", errors)

    def test_what_is_wrong_is_said(self):
        taken = socket.create_server(("", 0))
        self.addCleanup(taken.close)
        for what, (variables, said) in WRONG.items():
            with self.subTest(what):
                self.write_old()
                variables = {name: str(taken.getsockname()[1]) if value == "TAKEN" else value
                             for name, value in variables.items()}
                process = self.start(variables)
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1)
                self.assertIn(said, errors)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
