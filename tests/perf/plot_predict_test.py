#!/usr/bin/env python3
"""Tests plot_predict.py on small rankings: plot_predict_test.py SCRIPT. 77 (skipped) where matplotlib is missing."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = None  # set in main


def ranking(nodes, capacity_factor, oversubscription):
    grid = {"nMp": 1, "nEp": nodes, "nEsp": 1, "order": "EspEp"}
    return {"schema": "moeccl-predict", "schemaVersion": 1, "ranksPerNode": [1] * nodes, "nodesPerSwitch": 1,
            "oversubscription": oversubscription, "layer": {"topK": 2, "capacityFactor": capacity_factor},
            "choices": [{"grid": grid, "schedule": schedule, "communication": seconds, "tokensPerSecond": 1 / seconds}
                        for schedule, seconds in (("S1", 1), ("S2", 2 * capacity_factor), ("baseline", 4))]}


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

    def test_wrong_files_are_told(self):
        for rankings, said in (([ranking(2, 1, 1)], "nothing to draw"), ([{"schema": "other"}], "0.json is no moeccl-predict")):
            done = self.plot(rankings, "never.png")
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(77)
    SCRIPT = os.path.abspath(sys.argv.pop(1))
    unittest.main()
