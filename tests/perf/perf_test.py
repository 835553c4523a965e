#!/usr/bin/env python3
"""Tests moeccl-perf as a user starts it: perf_test.py --perf COMMAND --lab COMMAND [--mpi absent|unused]"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None  # set in main
QUICK = ("-n", "2", "-w", "1", "-r", "3")


def execute(*command, **environment):
    return subprocess.run(list(command), capture_output=True, text=True, timeout=100,
                          stdin=subprocess.DEVNULL, env={**os.environ, **environment})


def ranks(nodes, *arguments):
    return execute(OPTIONS.lab, "run", "--emulate", nodes, "--no-prefix", "--", OPTIONS.perf, *arguments)


class Perf(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = os.path.join(folder.name, "out.json")

    def measured(self, process):
        """The JSON of a run that must have gone well."""
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertIn("# Out of bounds values : 0 OK", process.stdout)
        with open(self.json, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["schemaVersion"]), ("moeccl-perf", 1))
        self.assertEqual((report["memory"], report["device"]), ("host", None))
        for result in report["results"]:
            self.assertEqual(result["wrong"], 0)
            self.assertEqual(len(result["timesUs"]), report["repetitions"])
            self.assertTrue(all(time > 0 for time in result["timesUs"]))
            spread = result["timeUs"]
            self.assertLessEqual(spread["min"], spread["median"])
            self.assertLessEqual(spread["median"], spread["max"])
            self.assertAlmostEqual(result["algbwGBs"] * spread["median"] * 1e3, result["size"], delta=1e-6)
            self.assertAlmostEqual(result["busbwGBs"] * report["ranks"],
                                   result["algbwGBs"] * (report["ranks"] - 1))
        return report

    def test_one_rank_without_launcher(self):
        report = self.measured(execute(OPTIONS.perf, "alltoall", *QUICK, "-b", "0", "-e", "64", "-i", "32",
                                       "--json", self.json))
        self.assertEqual((report["ranks"], report["ranksPerNode"]), (1, [1]))
        self.assertEqual([result["size"] for result in report["results"]], [0, 32, 64])

    def test_collectives_of_a_grid(self):
        for collective, algorithms in (("tpalltoall", "direct,sliced"), ("dispatch", "flat,dedup"),
                                       ("combine", "flat,dedup"), ("splitdispatch", "flat,dedup"),
                                       ("combineallgather", "sequential,pipelined")):
            with self.subTest(collective):
                process = ranks("2x2", collective, *QUICK, "-b", "1000", "-e", "1000", "--blocks", "-d", "all",
                                "--experts", "2", "--algorithms", algorithms, "--json", self.json)
                self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
                self.assertIn("# Out of bounds values : 0 OK", process.stdout)
                with open(self.json, encoding="utf-8") as file:
                    report = json.load(file)
                self.assertEqual(report["grid"], {"nMp": 2, "nEp": 2, "nEsp": 2, "order": "EspEp", "experts": 2})

    def routed(self, *arguments):
        """What a run of routes that must have gone well printed, and its JSON."""
        process = ranks("2x2", "route", "-n", "1", "-r", "2", "--tokens", "40", "--experts", "9", "--top-k", "3",
                        "--json", self.json, *arguments)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertIn("# 0 elements wrong", process.stdout)
        with open(self.json, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["schemaVersion"]), ("moeccl-perf-route", 2))
        self.assertEqual((report["memory"], report["device"], report["ranksPerNode"]), ("host", None, [2, 2]))
        self.assertEqual((report["experts"], report["topk"], report["tokens"]), (9, 3, 40))
        for result in report["results"]:
            self.assertEqual((result["wrong"], result["reference"]), (0, report["results"][0]["name"]))
            for call in ("begin", "dispatch", "combine"):
                times = result[call]["timesUs"]
                self.assertEqual(len(times), 2)
                self.assertEqual(min(times), result[call]["timeUs"]["min"])
            self.assertLessEqual(result["step"]["p50Us"], result["step"]["p99Us"])
        return process.stdout, report

    def test_token_routing(self):
        for routing in (["even", "-d", "half"], ["zipf", "--esp", "2"], ["hot", "-d", "float"],
                        ["text", "--text", __file__]):
            with self.subTest(routing[0]):
                text, report = self.routed("--hidden", "70", "--routing", *routing)
                names = ["flat", "rank", "node", "auto", "latency"]
                self.assertEqual([result["name"] for result in report["results"]], names)
                self.assertEqual([result["algorithm"] for result in report["results"]][:3], names[:3])
                for name in ("flat", "rank", "node", "auto: ", "latency: "):
                    self.assertRegex(text, rf"(?m)^{name}")
                by = [float(rows) for rows in re.findall(r"(\d\.\d\d) by", text)]
                self.assertEqual(by, sorted(by))
                self.assertGreater(by[0], 0)
                self.assertEqual(by, [round(rows, 2) for rows in report["rowsPerToken"].values()])

    def test_token_routing_of_float8(self):
        for name in ("fp8_e4m3", "fp8_e5m2"):
            with self.subTest(name):
                _, report = self.routed("--hidden", "256", "-d", name)
                self.assertEqual((report["type"], report["combineType"]), (name, "bfloat16"))

    def test_rows_that_travel_as_float8(self):
        names = ["auto", "auto:fp8_e4m3", "node:fp8_e5m2", "latency:fp8_e4m3"]
        _, report = self.routed("--hidden", "256", "--algorithms", ",".join(names))
        self.assertEqual([result["name"] for result in report["results"]], names)

    def test_numbers_of_tokens_that_are_drawn(self):
        for options, said in (([], "dropless"), (["--capacity-factor", "1.5"], "capacity factor 1.5")):
            process = ranks("2x2", "route", "--drawn", "20", "--tokens", "30", "--experts", "8", "--top-k", "3", "--hidden", "64",
                            *options)
            self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
            self.assertIn(f"# 20 passes of 0 to 30 tokens, drawn anew on each of 4 ranks, {said}: P50 ", process.stdout)
            self.assertRegex(process.stdout, r"\d+ passes took more than 3 times that")
            self.assertIn("# 0 elements wrong", process.stdout)

    def test_wrong_options_of_token_routing(self):
        for arguments, text in ((["--top-k", "9", "--experts", "8"], "a token cannot have 9 of 8 experts"),
                                (["--tokens", "268435456"], "--tokens: 268435456 is too many"),
                                (["-d", "fp8_e4m3", "--hidden", "200"], "--hidden: 200 is no multiple of 128"),
                                (["-d", "int8"], "--datatype: int8 not in"),
                                (["--algorithms", "node:bfloat16"], "node:bfloat16 must end with :fp8_e4m3 or :fp8_e5m2"),
                                (["--capacity-factor", "1"], "--capacity-factor requires --drawn"),
                                (["--memory", "disk"], "--memory: disk not in")):
            process = execute(OPTIONS.perf, "route", *arguments)
            self.assertEqual(process.returncode, 2, arguments)
            self.assertIn(text, process.stderr)
        process = execute(OPTIONS.perf, "route", "--json", "/no/such/folder/out.json", "--tokens", "1")
        self.assertEqual(process.returncode, 1)
        self.assertIn("--json: cannot write /no/such/folder/out.json", process.stderr)

    def test_bus_bandwidth_counts_what_leaves_a_rank(self):
        # Of 16 blocks, which the four ranks of an MP group have in common, a rank sends on its own 4, 3 of them away.
        process = ranks("2x2", "splitdispatch", *QUICK, "-b", "64", "-e", "64", "--blocks", "--grid", "4x4x1",
                        "--json", self.json)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        with open(self.json, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertTrue(results)
        for result in results:
            self.assertAlmostEqual(result["busbwGBs"], result["algbwGBs"] * 3 / 16, delta=1e-9)

    def test_uneven_nodes_have_no_grid_by_themselves(self):
        process = ranks("2,1", "dispatch", *QUICK, "-b", "64", "-e", "64")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("--grid: nodes have different numbers of ranks", process.stderr)

    def test_reductions(self):
        for collective in ("reducescatter", "allreduce"):
            with self.subTest(collective):
                process = ranks("1x3", collective, *QUICK, "-b", "3000", "-e", "3000", "-d", "all",
                                "--algorithms", "linear,ring,hierarchical")
                self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
                self.assertIn("# Out of bounds values : 0 OK", process.stdout)

    def test_all_to_all(self):
        report = self.measured(ranks("2x2", "alltoall", *QUICK, "-b", "64", "-e", "4K", "-f", "64", "--blocks",
                                     "-c", "2", "--algorithms", "linear,pairwise,hierarchical",
                                     "--json", self.json))
        self.assertEqual((report["ranks"], report["ranksPerNode"]), (4, [2, 2]))
        self.assertEqual([(r["block"], r["algorithm"]) for r in report["results"]],
                         [(block, name) for block in (64, 4096)
                          for name in ("linear", "pairwise", "hierarchical")])
        for result in report["results"]:
            self.assertEqual(result["size"], 4 * result["block"])
            self.assertEqual(result["count"] * 4, result["block"])
            self.assertEqual((result["reference"], result["inPlace"]), ("linear", False))

    def test_all_gather_in_and_out_of_place(self):
        report = self.measured(ranks("3,1", "allgather", *QUICK, "-b", "1003", "-e", "1003", "-d", "int8",
                                     "--algorithms", "ring,linear", "--json", self.json))
        self.assertEqual([(r["algorithm"], r["inPlace"], r["count"], r["size"]) for r in report["results"]],
                         [(name, place, 250, 1000) for name in ("ring", "linear") for place in (False, True)])

    def test_every_data_type(self):
        report = self.measured(ranks("2x1", "alltoall", "-n", "1", "-w", "0", "-r", "1", "-b", "96", "-e", "96",
                                     "-d", "all", "--json", self.json))
        self.assertEqual(len({result["type"] for result in report["results"]}), 14)
        self.assertEqual({result["size"] for result in report["results"]}, {96})

    def test_unchecked(self):
        process = execute(OPTIONS.perf, "alltoall", *QUICK, "-b", "8", "-e", "8", "-c", "0", "--json", self.json)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertNotIn("Out of bounds", process.stdout)
        self.assertIn("N/A", process.stdout.splitlines()[-2])
        with open(self.json, encoding="utf-8") as file:
            self.assertIsNone(json.load(file)["results"][0]["wrong"])

    def test_wrong_arguments(self):
        process = ranks("2x2", "alltoall", "-d", "float31")
        self.assertEqual(process.returncode, 2)
        self.assertIn("float31", process.stderr)

    def test_unknown_algorithm(self):
        process = ranks("2x1", "alltoall", "-b", "64", "-e", "64", "--algorithms", "linear,magic")
        self.assertEqual(process.returncode, 1)
        self.assertIn("magic", process.stderr)

    def test_without_a_gpu(self):
        for nodes in ("1x1", "1x2"):
            process = execute(OPTIONS.lab, "run", "--emulate", nodes, "--no-prefix", "--", OPTIONS.perf,
                              "alltoall", "--memory", "cuda", CUDA_VISIBLE_DEVICES="-1")
            self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
            self.assertRegex(process.stderr, "--memory cuda: (there is no usable CUDA driver: |.* has no device|.*"
                                             "built without CUDA)")

    def test_unwritable_json(self):
        process = execute(OPTIONS.perf, "alltoall", "-b", "64", "-e", "64", "--json", "/nowhere/out.json")
        self.assertEqual(process.returncode, 1)
        self.assertIn("/nowhere/out.json", process.stderr)

    def test_comparing_takes_mpi(self):
        process = execute(OPTIONS.perf, "alltoall", "--compare", "mpi")
        self.assertEqual(process.returncode, 1)
        self.assertIn("built without MPI" if OPTIONS.mpi == "absent" else "mpirun", process.stderr)

    def mpirun(self, *arguments):
        if OPTIONS.mpi != "used" or not shutil.which("mpirun"):
            self.skipTest("without MPI")
        return execute("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                       "--mca", "btl", "self,vader", "-np", "3", OPTIONS.perf, *arguments,
                       OMPI_MCA_mpi_yield_when_idle="1")

    def test_beside_mpi(self):
        names = ["linear", "mpi:default", "mpi:linear", "mpi:modified_bruck"]
        report = self.measured(self.mpirun("alltoall", *QUICK, "-b", "64", "-e", "64", "--blocks",
                                           "--algorithms", "linear", "--compare", "mpi", "--mpi-algorithms",
                                           "default,linear,modified_bruck", "--json", self.json))
        self.assertEqual([result["algorithm"] for result in report["results"]], names)
        self.assertIn("MPI", report["mpiVersion"])
        references = {result["reference"] for result in report["results"]}
        self.assertEqual(len(references), 1)
        self.assertTrue(references.pop().startswith("mpi:"))

    def test_all_gather_beside_mpi_in_place(self):
        report = self.measured(self.mpirun("allgather", *QUICK, "-b", "96", "-e", "96", "--compare", "mpi",
                                           "--json", self.json))
        self.assertEqual([(r["algorithm"], r["inPlace"]) for r in report["results"]],
                         [(name, place) for name in ("auto", "mpi:default") for place in (False, True)])

    def test_unknown_mpi_algorithm(self):
        process = self.mpirun("alltoall", "--compare", "mpi", "--mpi-algorithms", "magic")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn('has no "magic"; there are default, ', process.stderr)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--perf", required=True)
    parser.add_argument("--lab", required=True)
    parser.add_argument("--mpi", choices=("used", "unused", "absent"), default="used",
                        help="absent: moeccl-perf was built without it")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
