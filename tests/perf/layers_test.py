#!/usr/bin/env python3
"""Tests moeccl-perf layers as a user starts it: layers_test.py --perf COMMAND --lab COMMAND"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None  # set in main
TINY = ("--scale", "128", "-r", "3", "--turn-ms", "0")


def execute(*command, **environment):
    return subprocess.run(list(command), capture_output=True, text=True, timeout=100,
                          stdin=subprocess.DEVNULL, env={**os.environ, **environment})


def ranks(nodes, *arguments):
    return execute(OPTIONS.lab, "run", "--emulate", nodes, "--no-prefix", "--", OPTIONS.perf, "layers", *arguments)


class Layers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.json = os.path.join(folder.name, "out.json")

    def measured(self, process, learns=False):
        """The JSON of a run that must have gone well."""
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        with open(self.json, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["schema"], report["schemaVersion"]), ("moeccl-perf-layers", 1))
        for layer in report["layers"]:
            self.hold_together(layer, report["repetitions"], report["closeRepetitions"], learns)
        return report

    def hold_together(self, layer, repetitions, close_repetitions, learns):
        """Best, regrets and predictions follow from the times beside them."""
        candidates = {candidate["name"]: candidate for candidate in layer["candidates"]}
        medians = {name: statistics.median(candidate["seconds"]) for name, candidate in candidates.items()}
        first = {name: statistics.median(candidate["seconds"][:repetitions]) for name, candidate in candidates.items()}
        for name, candidate in candidates.items():
            close = first[name] <= 1.3 * min(first.values())
            self.assertEqual(len(candidate["seconds"]), repetitions + close * close_repetitions)
            timed_as = candidates[candidate["timedAs"]]
            self.assertEqual(timed_as["timedAs"], candidate["timedAs"])
            self.assertEqual(timed_as["seconds"], candidate["seconds"])
            # Without MP S1's and S2's plans may be equal.
            same = {"S1", "S2"} if layer["nMp"] == 1 else set()
            self.assertTrue({timed_as["followed"], candidate["followed"]} <= same
                            or timed_as["followed"] == candidate["followed"], candidate["name"])
            self.assertGreater(min(candidate["seconds"]), 0)
            self.assertLessEqual(candidate["error"], 1e-4)
        least = min(medians.values())
        self.assertEqual(medians[layer["best"]], least)
        for verdict in layer["rules"].values():
            self.assertAlmostEqual(verdict["regret"], medians[verdict["candidate"]] / least - 1)
            self.assertEqual(verdict["right"], candidates[verdict["candidate"]]["followed"] ==
                             candidates[layer["best"]]["followed"])
        offered = {candidate["schedule"] for candidate in candidates.values()} - {"auto"}
        self.assertEqual({choice["schedule"] for choice in layer["predictions"]["model"]}, offered)
        if not learns:
            self.assertEqual(layer["predictions"]["model"][0]["schedule"], candidates["auto"]["followed"])
        for rule in ("parm", "corrected"):
            self.assertLessEqual({choice["schedule"] for choice in layer["predictions"][rule]}, {"S1", "S2"})

    def test_four_ranks(self):
        process = ranks("2x2", "-l", "9", *TINY, "--json", self.json, "--note", "nothing shaped")
        report = self.measured(process)
        self.assertEqual((report["ranks"], report["ranksPerNode"], report["scale"]), (4, [2, 2], 128))
        self.assertEqual(report["note"], "nothing shaped")
        self.assertEqual(len({(layer["nMp"], layer["nEsp"]) for layer in report["layers"]}), 9)
        for layer in report["layers"]:
            names = {candidate["name"] for candidate in layer["candidates"]}
            self.assertLess({"baseline", "S1", "S2", "auto", "S1 combine=dedup;dispatch=dedup"}, names)
            # PPMoE takes an MP group of all ranks.
            self.assertEqual("PPMoE" in names, layer["nMp"] == 4)
            for absent in layer["notOffered"]:
                self.assertIn("nMp", absent["reason"])
        self.assertEqual(report["rules"]["model"]["layers"], 9)
        regrets = [layer["rules"]["model"]["regret"] for layer in report["layers"]]
        self.assertAlmostEqual(report["rules"]["model"]["meanRegret"], statistics.mean(regrets))
        self.assertAlmostEqual(report["rules"]["model"]["worstRegret"], max(regrets))
        for text in ("always S1", "Algorithm 1, published", "Predictions of the model", "table IV"):
            self.assertIn(text, process.stdout)
        self.assertIn("9 of 9 layers", process.stderr)

    def test_dropless(self):
        report = self.measured(ranks("2x2", "--pass", "both", "--grid", "1x2x2", "--layer",
                                     "tokens=64,embedding=32,hidden=16,experts=8,top-k=4,capacity-factor=0", "-r", "3", "--turn-ms", "0", "--json", self.json))
        layer, = report["layers"]
        self.assertEqual((layer["nEp"], layer["nEsp"], layer["topK"], layer["capacityFactor"]), (2, 2, 4, 0))
        names = {candidate["name"] for candidate in layer["candidates"]}
        self.assertEqual(names, {"baseline", "baseline tokenRouting=-1", "baseline tokenRouting=1",
                                 "S1", "S1 tokenRouting=-1", "S1 tokenRouting=1", "auto"})
        # What is chosen is one of the two that are fixed.
        timed_as = {candidate["name"]: candidate["timedAs"] for candidate in layer["candidates"]}
        self.assertEqual(timed_as["S1 tokenRouting=-1"] == "S1", timed_as["S1 tokenRouting=1"] != "S1")

    def test_backward_takes_longer(self):
        both, forward = (self.measured(ranks("2x2", "-l", "4", *TINY, "--pass", which, "--json", self.json))
                         for which in ("both", "forward"))
        self.assertEqual((both["pass"], forward["pass"]), ("both", "forward"))
        predicted = [sum(layer["predictions"]["model"][0]["seconds"] for layer in report["layers"])
                     for report in (both, forward)]
        self.assertGreater(predicted[0], 1.5 * predicted[1])
        # What backward passes exchange besides has candidates, too.
        for report, adds in ((both, True), (forward, False)):
            names = {candidate["name"] for layer in report["layers"] for candidate in layer["candidates"]}
            self.assertEqual(any("allreduce" in name for name in names if name.startswith("S1")), adds, names)

    def test_one_rank_chooses_a_scale(self):
        report = self.measured(execute(OPTIONS.perf, "layers", "-l", "2", "-r", "1", "--turn-ms", "0", "--layer-seconds",
                                       "0.05", "--json", self.json))
        self.assertIn(report["scale"], [1, 2, 4, 8, 16, 32, 64, 128])
        self.assertEqual({(layer["nMp"], layer["nEsp"]) for layer in report["layers"]}, {(1, 1)})

    def test_an_odd_number_of_ranks(self):
        report = self.measured(ranks("2,1", "-l", "2", *TINY, "--json", self.json))
        self.assertEqual({(layer["nMp"], layer["nEp"], layer["nEsp"]) for layer in report["layers"]}, {(1, 3, 1)})

    def test_layers_too_large_are_skipped(self):
        process = ranks("1x2", "-l", "4", *TINY, "--memory-gib", "0.00001", "--json", self.json)
        report = self.measured(process)
        self.assertEqual((len(report["layers"]), len(report["skipped"])), (0, 4))
        self.assertIn("4 layers skipped", process.stdout)

    def test_what_is_printed_is_what_the_json_has(self):
        process = execute(OPTIONS.perf, "layers", "-l", "4", *TINY, "--close-repetitions", "4", "--json", self.json)
        report = self.measured(process)
        rows = [re.split(r"\s{2,}", line.strip()) for line in process.stdout.splitlines() if line.startswith("  ")]
        for rule, its in report["rules"].items():
            printed = next(row for row in rows if row[0] == rule)
            self.assertEqual(int(printed[1]), its["layers"])
            self.assertEqual(printed[2], f"{100 * its['meanRegret']:.1f} %")
            self.assertEqual(printed[-1], f"{100 * its['withinNoise']:.0f} %")
        for name, its in report["predictionErrors"].items():
            printed = [row for row in rows if row[0] == name][-1]
            self.assertEqual(printed[2], f"{100 * its['median']:.1f} %")
        for layer, printed in zip(report["layers"], (row for row in rows if "%" in row[-2])):
            self.assertEqual(printed[-2], f"{100 * layer['rules']['model']['regret']:.1f}%")
            self.assertEqual(printed[-1], layer["best"])

    def test_some_schedules(self):
        layer = "tokens=64,embedding=32,hidden=16,experts=8,top-k=2,capacity-factor=1.2"
        process = ranks("2x2", "--layer", layer, "--grid", "2x2x2", "--schedules", "S2,auto", "-r", "3", "--turn-ms", "0",
                        "--json", self.json)
        self.assertEqual(process.returncode, 0, process.stderr)
        with open(self.json, encoding="utf-8") as file:
            measured, = json.load(file)["layers"]
        self.assertEqual([candidate["name"] for candidate in measured["candidates"]], ["S2", "auto"])
        self.assertEqual((measured["nMp"], measured["nEsp"], measured["length"], measured["topK"]), (2, 2, 64, 2))
        one = ranks("1x2", "--layer", layer, "--schedules", "S1", "-r", "1", "--turn-ms", "0")
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertRegex(one.stdout, r"- +- +[0-9.]+ +- +S1\n")
        none = ranks("2x2", "--layer", layer, "--schedules", "PPMoE")
        self.assertEqual(none.returncode, 1)
        self.assertIn("--schedules: the layer is offered under none of them: ", none.stderr)
        wrong = ranks("2x2", "--schedules", "S1,S7")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn('--schedules: "S7" is none; give all or auto, baseline, S1, S2', wrong.stderr)

    def test_layers_learn(self):
        process = ranks("2x2", "-l", "2", *TINY, "--learn", "40", "--json", self.json)
        report = self.measured(process, learns=True)
        self.assertEqual(report["learn"], 40)
        self.assertIn("# auto learned for 40 steps before\n", process.stdout)
        for layer in report["layers"]:
            auto = next(candidate for candidate in layer["candidates"] if candidate["name"] == "auto")
            self.assertEqual(auto["timedAs"], "auto")

    def test_wrong_arguments(self):
        process = ranks("2x2", "--scale", "3")
        self.assertEqual(process.returncode, 2)
        self.assertIn("3 is no power of two", process.stderr)

    def test_unwritable_json(self):
        process = execute(OPTIONS.perf, "layers", "-l", "1", *TINY, "--json", "/nowhere/out.json")
        self.assertEqual(process.returncode, 1)
        self.assertIn("/nowhere/out.json", process.stderr)

    def test_candidates_fixed_from_outside_are_refused(self):
        process = execute(OPTIONS.perf, "layers", "-l", "1", *TINY, MOECCL_SCHEDULE="S1")
        self.assertEqual(process.returncode, 2)
        self.assertIn("MOECCL_SCHEDULE", process.stderr)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--perf", "--lab"):
        parser.add_argument(name, required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
