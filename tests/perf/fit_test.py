#!/usr/bin/env python3
"""Tests moeccl-fit as a user starts it: fit_test.py --fit COMMAND --perf COMMAND --lab COMMAND"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

OPTIONS = None  # set in main
# Other tests keep the processors busy meanwhile.
QUICK = ("--budget", "4", "--max-bytes", "4K", "--alternatives", "2", "--max-repetitions", "3", "--force")


def environment(**more):
    # OpenBLAS would let every rank have all cores.
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}


def execute(*command, **more):
    return subprocess.run(list(command), capture_output=True, text=True, timeout=100,
                          stdin=subprocess.DEVNULL, env=environment(**more))


def processor_seconds():
    """What all programs have used; 0 where nobody says."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return sum(map(int, file.readline().split()[1:4])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0


def on(nodes, *command):
    return (OPTIONS.lab, "run", "--emulate", nodes, "--no-prefix", "--", *command)


class Fit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.profile = self.path("profile.json")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def fit(self, nodes, *arguments):
        """The profile of a run that must have gone well."""
        process = execute(*on(nodes, OPTIONS.fit, "-o", self.profile, *arguments))
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertIn(f"written to {self.profile}", process.stdout)
        profile = self.read(self.profile)
        rows = {tuple(line.split()[:2]) for line in process.stdout.splitlines()}
        for curve in profile["curves"]:
            if not curve["where"].endswith(", alone"):
                self.assertIn((curve["collective"], curve["where"].split()[0]), rows, process.stdout)
        for curve in profile["curves"]:
            sizes = [sample["bytes"] for sample in curve["samples"]]
            self.assertEqual(sizes, sorted(set(sizes)), curve)
            self.assertTrue(all(sample["seconds"] > 0 for sample in curve["samples"]))
        return profile

    def test_one_collective_alone(self):
        profile = self.fit("2x2", "--collectives", "alltoall", "--grids", "1x4x1", *QUICK)
        self.assertEqual({(curve["collective"], curve["where"]) for curve in profile["curves"]},
                         {("alltoall", where) for where in ("2x2", "1x2", "2x1", "1x2, alone", "2x1, alone")})
        self.assertEqual(profile["local"], {})
        process = execute(*on("2x2", OPTIONS.perf, "alltoall", "-b", "4K", "-e", "4K"), MOECCL_PROFILE=self.profile)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)

    def test_nodes_with_different_processors(self):
        other = 'if [ "$MOECCL_RANK" -ge 2 ]; then export HWLOC_SYNTHETIC="pack:1 core:4 pu:1"; fi; exec "$@"'
        differing = on("2x2", "sh", "-c", other, "sh")
        process = execute(*differing, OPTIONS.fit, "-o", self.profile, *QUICK, "--grids", "2x2x2")
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        process = execute(*differing, OPTIONS.perf, "alltoall", "-b", "64", "-e", "64", MOECCL_PROFILE=self.profile)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)

    def test_a_profile_that_predicts(self):
        profile = self.fit("2x2", "--budget", "200", *QUICK[2:], "--grids", "2x2x2,1x2x2", "--map", self.path("map.json"))
        self.assertEqual(profile["fingerprint"]["ranksPerNode"], [2, 2])
        measured = {(curve["collective"], curve["where"]) for curve in profile["curves"]}
        self.assertEqual(measured, {
            ("allgather", "1x2"), ("allreduce", "1x2"), ("reducescatter", "1x2"), ("alltoallv", "1x2"), ("alltoallv", "2x1"),
            *(("alltoall", where) for where in ("2x2", "1x2", "2x1", "1x2, alone", "2x1, alone")),
            *((name, f"mp{mp},ep2,esp2 on 2x2") for mp in (1, 2)
              for name in ("dispatch", "combine", "combineallgather", "splitdispatch"))})
        self.assertGreater(len(profile["local"]["forward"]["samples"]), 0)
        sizes = {sample["bytes"] for curve in profile["curves"] if curve["where"] == "1x2, alone" for sample in curve["samples"]}
        self.assertGreaterEqual(sizes, {256, 768, 2304, 4096})
        # Measured once, known to both grids, and of each rank's share to split-dispatch.
        dispatch = [curve["samples"] for curve in profile["curves"] if curve["collective"] == "dispatch"]
        self.assertIn(dispatch[0], dispatch[1:])
        samples = {(curve["collective"], curve["algorithm"], curve["where"]): curve["samples"] for curve in profile["curves"]}
        for mp in (1, 2):
            where = f"mp{mp},ep2,esp2 on 2x2"
            algorithms = {algorithm for name, algorithm, there in samples if (name, there) == ("dispatch", where)}
            self.assertGreater(len(algorithms), 1)
            for algorithm in algorithms:
                self.assertEqual(samples["splitdispatch", algorithm, where],
                                 [{**sample, "bytes": mp * sample["bytes"]} for sample in samples["dispatch", algorithm, where]])
        self.assertEqual(samples["combineallgather", "sequential", "mp1,ep2,esp2 on 2x2"],
                         samples["combine", "dedup", "mp1,ep2,esp2 on 2x2"])
        self.assertNotEqual(samples["combineallgather", "sequential", "mp2,ep2,esp2 on 2x2"],
                            samples["combine", "dedup", "mp1,ep2,esp2 on 2x2"])

        schedules_map = self.read(self.path("map.json"))
        self.assertEqual([m["grid"]["nMp"] for m in schedules_map["maps"]], [2, 2, 1, 1])
        for one in schedules_map["maps"]:
            self.assertEqual(len(one["cells"]), len(one["y"]["values"]))
            for row in one["cells"]:
                self.assertEqual(len(row), len(one["x"]["values"]))
                for cell in row:
                    self.assertLessEqual({"baseline", "S1"}, set(cell))
                    self.assertTrue(all(choice["seconds"] > 0 and choice["measured"]
                                        for name, choice in cell.items() if name in ("S1", "S2")))

        process = execute(*on("2x2", OPTIONS.perf, "alltoall", "-b", "1K", "-e", "1K", "-n", "1"),
                          MOECCL_PROFILE=self.profile)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        process = execute(*on("1x2", OPTIONS.perf, "alltoall", "-b", "1K", "-e", "1K", "-n", "1"),
                          MOECCL_PROFILE=self.profile)
        self.assertNotEqual(process.returncode, 0, "another cluster's profile was taken")

    def test_refit_makes_the_same_fits(self):
        profile = self.fit("1x2", *QUICK, "--grids", "2x2x1")
        again = self.path("again.json")
        process = execute(OPTIONS.fit, "--refit", self.profile, "-o", again)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertEqual(self.read(again), profile)
        # A map of it can be had at any time.
        process = execute(OPTIONS.fit, "--refit", self.profile, "-o", again, "--map", self.path("map.json"))
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        maps = self.read(self.path("map.json"))
        self.assertEqual((maps["ranksPerNode"], len(maps["maps"])), ([2], 2 * 4))
        # What was fitted is not taken over but made anew.
        profile["curves"][0]["fit"]["alpha"] += 1
        with open(self.profile, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        execute(OPTIONS.fit, "--refit", self.profile, "-o", self.profile)
        self.assertEqual(self.read(self.profile), self.read(again))

    def test_one_rank_has_local_work_alone(self):
        for budget in (4, 16, 64):  # a busy machine measures less in the same time
            process = execute(OPTIONS.fit, "--budget", str(budget), *QUICK[2:], "-o", self.profile)
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn("Start as many\nranks as will train, as in\n  mpirun -np 16 moeccl-fit\n", process.stderr)
            profile = self.read(self.profile)
            both = [profile["local"][which]["samples"] for which in ("forward", "backward")]
            if min(map(len, both)) > 4:
                break
        self.assertEqual(profile["curves"], [])
        for samples in both:
            self.assertGreater(len(samples), 4)
            self.assertGreater(len({(sample["embedding"], sample["experts"]) for sample in samples}), 2)

    def test_uneven_nodes_and_prime_counts(self):
        profile = self.fit("2,1", *QUICK)
        self.assertEqual({curve["where"] for curve in profile["curves"]},
                         {"1x2", "2x1", "1x2, alone", "2x1, alone", "1x2+1x1", "mp1,ep3,esp1 on 1x2+1x1"})
        process = execute(*on("3,1", OPTIONS.fit, *QUICK, "--grids", "2x4x1", "-o", self.profile))
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("rank 2's MP group of grid 2x4x1: 2x1 ranks, rank 0's 1x2", process.stdout)

    def test_a_budget_cuts_and_says_so(self):
        for budget in (0.5, 2, 8, 32):  # the first is over before anything is measured where others keep the cores busy
            process = execute(*on("2x2", OPTIONS.fit, "--budget", str(budget), "--force", "-o", self.profile))
            if "--budget was over before the first size" not in process.stderr:
                break
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("Not measured", process.stdout)
        self.assertIn("splitdispatch, grid ", process.stdout)

    def test_without_samples_an_old_profile_stays(self):
        with open(self.profile, "w", encoding="utf-8") as file:
            file.write("an old one")
        alone, pairs = (), on("1x2")
        for start, arguments, said in ((pairs, ["--collectives", "alltoall", "--max-bytes", "1", "--min-bytes", "1"], "--max-bytes"),
                                       (pairs, ["--budget", "1e-9"], "--budget was over"),
                                       (alone, ["--budget", "1e-9"], "--budget was over"),
                                       (alone, ["--collectives", "alltoall"], "start more ranks")):
            process = execute(*start, OPTIONS.fit, "--force", "-o", self.profile, *arguments)
            self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
            self.assertRegex(process.stderr, f"nothing was measured, so {self.profile} is not written: .*{said}")
            with open(self.profile, encoding="utf-8") as file:
                self.assertEqual(file.read(), "an old one")

    def test_sizes_that_cannot_be_sent_are_told(self):
        for budget in (1, 4, 16):  # the first may be over before anything is measured
            process = execute(*on("1x2", OPTIONS.fit, "-o", self.profile, "--force", "--budget", str(budget),
                                  "--min-bytes", "1", "--max-bytes", "1"))
            if "--budget was over before the first size" not in process.stderr:
                break
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("alltoall of 1x2 ranks: none of the sizes can be sent", process.stdout)

    def test_what_samples_do_not_tell_is_no_number(self):
        for nodes, said in (("1x2", " GB/s for a rank inside a node; not measured between nodes\n"),
                            ("1,1", "Links: not measured inside a node; "),
                            ("1,2", "Links: not measured inside a node; ")):
            profile = self.fit(nodes, "--collectives", "alltoall", *QUICK)
            for curve in profile["curves"]:
                for number, sample in enumerate(curve["samples"]):
                    sample["seconds"] = 1e-5 / (1 + number)
            with open(self.profile, "w", encoding="utf-8") as file:
                json.dump(profile, file)
            process = execute(OPTIONS.fit, "--refit", self.profile, "-o", self.path("again.json"))
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertIn(said, process.stdout)
            self.assertEqual("between nodes, whose uplink carries" in process.stdout, nodes != "1x2", process.stdout)
            rows = [line.split() for line in process.stdout.splitlines() if line.startswith("alltoall ")]
            self.assertEqual({row[4] for row in rows}, {"-"}, process.stdout)

    def test_an_alpha_below_a_pair_is_no_number(self):
        profile = self.fit("2x2", "--collectives", "alltoall", "--grids", "1x4x1", *QUICK)
        for curve in profile["curves"]:
            alpha, beta = (1e-5, 1e-6) if curve["where"] == "2x2" else (1e-4, 1e-9)
            curve["samples"] = [{"bytes": size, "seconds": alpha + beta * size, "spread": 0.1} for size in (256, 1024, 4096)]
        with open(self.profile, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        process = execute(OPTIONS.fit, "--refit", self.profile, "-o", self.path("again.json"))
        self.assertEqual(process.returncode, 0, process.stderr)
        rows = [line.split() for line in process.stdout.splitlines() if line.startswith("alltoall ")]
        alphas = {(row[1], row[3]) for row in rows}
        self.assertEqual(alphas, {("2x2", "-"), ("1x2", "100.0"), ("2x1", "100.0")}, process.stdout)

    def test_beside_other_programs_there_is_no_profile(self):
        before = processor_seconds()
        for _ in os.sched_getaffinity(0):
            spinning = subprocess.Popen(["nice", "-n", "19", "sh", "-c", "while :; do :; done"])
            self.addCleanup(spinning.wait)
            self.addCleanup(spinning.kill)
        time.sleep(0.5)
        if processor_seconds() - before < 0.25 * len(os.sched_getaffinity(0)):
            self.skipTest("/proc/stat does not say what runs, or a quota leaves processors idle")
        fit = on("1x2", OPTIONS.fit, "-o", self.profile, "--collectives", "alltoall", *QUICK[2:-1], "--budget")
        process = execute(*fit, "2")
        self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
        busy = r"(?:other programs take|the host of this virtual machine takes) \d+\.\d\d of the \d+ processors of rank 0's machine"
        self.assertRegex(process.stderr, f"(?m)^moeccl-fit: busy: {busy}; waiting for at most 0:0\\d min\n")
        self.assertRegex(process.stderr, f"moeccl-fit: {busy}, .* by --force; {self.profile} is not written\n")
        self.assertEqual(os.listdir(self.folder), [])
        for budget in (4, 16, 64):  # the first may be over before anything is measured
            process = execute(*fit, str(budget), "--force")
            if "--budget was over before the first size" not in process.stderr:
                break
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        said = f"^The profile may be wrong, as it was written by --force:\n  {busy}, or so, in \\d+ of \\d+ looks\n"
        self.assertRegex(process.stdout, said)
        profile = self.read(self.profile)
        self.assertRegex(profile["doubts"][0], busy)
        # It stays so.
        process = execute(OPTIONS.fit, "--refit", self.profile, "-o", self.path("again.json"))
        self.assertRegex(process.stdout, said)
        self.assertEqual(self.read(self.path("again.json")), profile)

    def test_without_force_a_profile_has_no_doubts(self):
        # Whether there is one depends on what else runs.
        process = execute(*on("2x2", OPTIONS.fit, "-o", self.profile, "--collectives", "alltoall", *QUICK[:-1]))
        if process.returncode == 0:
            profile = self.read(self.profile)
            self.assertNotIn("doubts", profile)
            self.assertGreater(profile["duration"], 0)
        else:
            self.assertRegex(process.stderr, "is not written")
            self.assertEqual(os.listdir(self.folder), [])

    def test_wrong_grid(self):
        process = execute(*on("2x2", OPTIONS.fit, "--grids", "2x4x2", "-o", self.profile))
        self.assertEqual(process.returncode, 1)
        self.assertIn('"2x4x2" is not for 4 ranks', process.stderr)
        self.assertFalse(os.path.exists(self.profile))

    def test_without_a_gpu(self):
        process = execute(OPTIONS.fit, "--memory", "cuda", "-o", self.profile, CUDA_VISIBLE_DEVICES="-1")
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr, "--memory cuda: (there is no usable CUDA driver: |.* has no device|.*built"
                                         " without CUDA)")
        self.assertFalse(os.path.exists(self.profile))

    def test_unwritable_output(self):
        for arguments in (["--output", "/nowhere/file.json"],
                          ["-o", self.profile, "--map", "/nowhere/file.json"]):
            process = execute(*on("1x2", OPTIONS.fit, *arguments))
            self.assertNotEqual(process.returncode, 0)
            self.assertIn(f"{arguments[-2]}: cannot write /nowhere/file.json: No such", process.stderr)
        process = execute(OPTIONS.fit, "-o", self.folder)
        self.assertIn("Is a directory", process.stderr)

    def test_refit_of_no_profile(self):
        with open(self.profile, "w", encoding="utf-8") as file:
            file.write("{}")
        process = execute(OPTIONS.fit, "--refit", self.profile, "-o", self.path("new.json"))
        self.assertEqual(process.returncode, 1)
        self.assertIn(self.profile, process.stderr)
        self.assertFalse(os.path.exists(self.path("new.json")))

    def test_an_interrupt_leaves_no_profile(self):
        process = subprocess.Popen(on("2x2", OPTIONS.fit, "--force", "-o", self.profile), text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=environment())
        self.addCleanup(process.kill)
        while "left" not in (line := process.stderr.readline()):
            self.assertNotEqual(line, "", "ended early")
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 5, "the ranks were killed")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("interrupted; nothing was written", said)
        self.assertEqual(os.listdir(self.folder), [])


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--fit", "--perf", "--lab"):
        parser.add_argument(name, required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
