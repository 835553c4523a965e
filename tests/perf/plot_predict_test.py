#!/usr/bin/env python3
"""Tests plot_predict.py on small rankings: plot_predict_test.py SCRIPT. 77 (skipped) where matplotlib is missing."""
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = SHOWS = None  # set in main; the script as a module


def ranking(nodes, capacity_factor, oversubscription, mp=(1,), esp=(1,), layer=(), **more):
    """S1 is 2 N_MP N_ESP times as fast as the baseline, S2 N_MP / k f times."""
    return {"schema": "moeccl-plan-predict", "schemaVersion": 1, "ranksPerNode": [2] * nodes, "nodesPerSwitch": 1,
            "oversubscription": oversubscription, "links": "host", "networkGbits": 0, "profile": None, "pass": "forward",
            "layer": {"tokens": 8, "embedding": 8, "hidden": 8, "experts": 4 * nodes, "topK": 2, "capacityFactor": capacity_factor,
                      "capacityGroups": 0, **dict(layer)},
            "choices": [{"grid": {"nMp": n_mp, "nEp": 2 * nodes // n_esp, "nEsp": n_esp, "order": "EspEp"}, "schedule": schedule,
                         "seconds": seconds, "communication": seconds}
                        for n_mp in mp for n_esp in reversed(esp)
                        for schedule, seconds in (("S1", 1 / (2 * n_mp * n_esp)), ("S2", 2 * capacity_factor / n_mp), ("baseline", 1))],
            **more}


class Plot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def plot(self, rankings, output):
        paths = []
        for number, one in enumerate(rankings):
            paths.append(os.path.join(self.folder, f"{number}.json"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                json.dump(one, file)
        return subprocess.run([sys.executable, SCRIPT, "--output", output, *paths], capture_output=True, text=True,
                              timeout=60, check=False)

    def test_a_column_for_what_differs(self):
        from PIL import Image  # comes with matplotlib

        by_nodes = [ranking(nodes, 1, times) for nodes in (1, 2, 4) for times in (1, 4)]
        by_kf = [ranking(2, factor, times) for factor in (0.25, 0.5) for times in (1, 4)]
        widths = []
        for rankings in (by_nodes, by_nodes + by_kf):
            output = os.path.join(self.folder, "picture.png")
            done = self.plot(rankings, output)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("Warning", done.stderr)
            with Image.open(output) as picture:
                widths.append(picture.size[0])
        self.assertEqual(widths[1], 2 * widths[0])

    def shown(self, *rankings):
        """By column: what its cases have in common, and speedups of S1 and S2 and the quotient of exchanges over what differs."""
        cases = SHOWS.gather(dict(enumerate(rankings)))
        return {label: (common, {x: (SHOWS.speedup(case, "S1"), SHOWS.speedup(case, "S2"), SHOWS.s2_to_s1(case)) for x, case in points})
                for label, common, points in SHOWS.columns(cases, 2)}

    def test_what_differs_and_nothing_else(self):
        self.assertEqual(self.shown(ranking(1, 1, 1), ranking(2, 1, 1), ranking(2, 0.25, 1)), {
            "nodes": ("k f 2, N_MP 1", {1: (2, 0.5, 4), 2: (2, 0.5, 4)}),
            "k f": ("nodes 2, N_MP 1", {2: (2, 0.5, 4), 0.5: (2, 2, 1)})})
        over_mp = ("nodes 2, k f 2", {1: (2, 0.5, 4), 2: (4, 1, 4), 4: (8, 2, 4)})
        self.assertEqual(self.shown(ranking(2, 1, 1, mp=(1, 2, 4))), {"N_MP": over_mp})
        self.assertEqual(self.shown(*(ranking(2, 1, 1, mp=(mp,)) for mp in (1, 2, 4))), {"N_MP": over_mp})
        # N_ESP at the largest N_MP in a node, the others on their best N_ESP.
        self.assertEqual(self.shown(ranking(2, 1, 1, mp=(1, 2, 4), esp=(1, 2))), {
            "N_MP": ("nodes 2, k f 2", {1: (4, 0.5, 8), 2: (8, 1, 8), 4: (16, 2, 8)}),
            "N_ESP": ("nodes 2, k f 2, N_MP 2", {1: (4, 1, 4), 2: (8, 1, 8)})})
        # A point that two files have alike is one.
        self.assertEqual(self.shown(ranking(2, 1, 1, mp=(1, 2, 4)), ranking(2, 1, 1, mp=(2,))), {"N_MP": over_mp})

    def test_wrong_files_are_told(self):
        one = ranking(2, 1, 1)
        same_experts = [ranking(nodes, 1, 1, layer={"experts": 8}) for nodes in (1, 2)]
        self.assertEqual(set(self.shown(*same_experts)), {"nodes"})
        for rankings, said in (([one], "nothing to draw"), ([{"schema": "other"}], "0.json is no moeccl-plan-predict"),
                               ([one, ranking(4, 1, 1, layer={"tokens": 9})], "1.json differ in tokens, 8 and 9; they may differ"),
                               ([*same_experts, one, ranking(4, 1, 1)], "3.json differ in experts, 8 and 16"),
                               ([one, ranking(4, 1, 1, links="pcie")], "1.json differ in links, host and pcie"),
                               ([one, ranking(4, 1, 1, profile="p.json")], "1.json differ in profile, None and p.json"),
                               ([one, ranking(4, 1, 1, **{"pass": "both"})], "1.json differ in pass, forward and both"),
                               ([one, {**ranking(4, 1, 1), "ranksPerNode": [4] * 2}], "differ in ranks per node, [2] and [4]"),
                               ([one, ranking(2, 2, 1, layer={"topK": 1})], "1.json say two things of 2 nodes, k f 2, N_MP 1 and")):
            done = self.plot(rankings, os.path.join(self.folder, "never.png"))
            self.assertEqual(done.returncode, 1, said)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_picture_that_cannot_be_written(self):
        done = self.plot([ranking(1, 1, 1), ranking(2, 1, 1)], "/nowhere/picture.png")
        self.assertEqual((done.returncode, done.stderr),
                         (1, f"{SCRIPT}: cannot write /nowhere/picture.png: No such file or directory\n"))


if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(77)
    SCRIPT = os.path.abspath(sys.argv.pop(1))
    sys.path.insert(0, os.path.dirname(SCRIPT))
    SHOWS = importlib.import_module("plot_predict")
    unittest.main()
