#!/usr/bin/env python3
"""Tests moeccl-plan predict as a user starts it: predict_test.py --plan COMMAND --profile FILE"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

OPTIONS = None  # set in main
LAYER = "tokens=256,embedding=64,hidden=256,experts=32,top-k=2,capacity-factor=1.2"


def plan(*arguments, layer=LAYER):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MOECCL_")}
    return subprocess.run([OPTIONS.plan, "predict", "--layer", layer, *arguments], capture_output=True, text=True,
                          timeout=100, stdin=subprocess.DEVNULL, env=environment)


class Plan(unittest.TestCase):
    def ranked(self, *arguments, **more):
        """What a run that must have gone well has printed, and written."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            process = plan(*arguments, "--json", path, **more)
            self.assertEqual(process.returncode, 0, process.stderr)
            with open(path, encoding="utf-8") as file:
                return process.stdout, json.load(file)

    def test_ranks_placements_and_schedules(self):
        text, ranking = self.ranked("--nodes", "4x4", "--top", "3", "--explain")
        self.assertEqual((ranking["schema"], ranking["ranksPerNode"]), ("moeccl-plan-predict", [4] * 4))
        choices = ranking["choices"]
        rates = [choice["tokensPerSecond"] for choice in choices]
        self.assertEqual(rates, sorted(rates, reverse=True))
        for choice in choices:
            grid = choice["grid"]
            self.assertEqual(grid["nEp"] * grid["nEsp"], 16)
            self.assertAlmostEqual(choice["tokensPerSecond"] * choice["seconds"] / 256 * grid["nMp"], 16)
            self.assertLessEqual(choice["communication"], choice["seconds"])
        grids = {tuple(choice["grid"].values()) for choice in choices}
        self.assertEqual(len(grids), 5 * (2 + 3 * 2))
        self.assertEqual({choice["schedule"] for choice in choices}, {"baseline", "S1", "S2", "PPMoE"})
        lines = [line for line in text.split("\n\n")[0].splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 3)
        self.assertIn(choices[0]["schedule"], lines[0])
        self.assertIn("local work", text.split("\n\n", 1)[1])

    def test_groups_in_nodes_save_bytes(self):
        _, ranking = self.ranked("--nodes", "4x4", "--mp", "4")
        sent = {choice["grid"]["order"]: choice["bytesBetween"] for choice in ranking["choices"]
                if choice["grid"]["nEsp"] == 4 and choice["schedule"] == "S1"}
        # ESP groups in nodes: a block crosses once instead of once per shard.
        self.assertLess(2 * sent["EspEp"], sent["EpEsp"])

    def test_asked_for_links(self):
        cluster = ("--nodes", "4x4", "--mp", "1")
        def fastest(*arguments):
            return self.ranked(*cluster, *arguments)[1]["choices"][0]["communication"]
        slow, host = fastest("--network-gbits", "1"), fastest()
        self.assertEqual(host, fastest("--links", "host"))
        self.assertGreater(slow, 2 * host)
        self.assertLess(fastest("--links", "nvlink"), host)
        self.assertLess(fastest("--links", "nvlink"), fastest("--links", "pcie"))
        self.assertLess(fastest("--links", "pcie"), fastest("--links", "pcie", "--network-gbits", "10"))
        text, _ = self.ranked(*cluster, "--links", "pcie", "--network-gbits", "10")
        self.assertIn("typical links (pcie, 10 Gb/s)", text)
        for wrong in (("--links", "ib"), ("--network-gbits", "0"), ("--network-gbits", "5", "--profile", OPTIONS.profile)):
            process = plan(*cluster, *wrong)
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(wrong[0], process.stderr)

    def test_typical_gpus_where_a_profile_says_nothing(self):
        """This one has links, and nothing of the local work of backward passes."""
        asked = ("--nodes", "2x4", "--mp", "1", "--pass", "backward", "--profile", OPTIONS.profile)
        text, gpus = self.ranked(*asked, "--links", "pcie")
        self.assertIn(f"{OPTIONS.profile} (pcie)", text)
        host, gpus = self.ranked(*asked)[1]["choices"][0], gpus["choices"][0]
        self.assertEqual((host["grid"], host["schedule"]), (gpus["grid"], gpus["schedule"]))
        self.assertAlmostEqual(gpus["communication"] / host["communication"], 1, delta=0.3)
        self.assertGreater(host["seconds"] - host["communication"], 2 * (gpus["seconds"] - gpus["communication"]))

    def test_leaf_switches(self):
        cluster = ("--nodes", "4x4", "--mp", "4")
        text, one = self.ranked(*cluster)
        self.assertNotIn("leaves", text)
        self.assertEqual((one["nodesPerSwitch"], one["oversubscription"]), (0, 1))
        _, leaf = self.ranked(*cluster, "--nodes-per-switch", "4", "--oversubscription", "8")
        self.assertEqual(leaf["choices"], one["choices"])
        text, tight = self.ranked(*cluster, "--nodes-per-switch", "2", "--oversubscription", "8")
        self.assertIn("leaves of 2 nodes, oversubscription 8", text)
        def times(ranking):
            return {(str(choice["grid"]), choice["schedule"]): choice["communication"] for choice in ranking["choices"]}
        before, after = times(one), times(tight)
        for which, seconds in after.items():
            self.assertGreaterEqual(seconds, before[which] * (1 - 1e-9), which)
        self.assertGreater(max(after[which] / before[which] for which in after), 2)
        for wrong in (("--oversubscription", "4"), ("--nodes-per-switch", "2", "--oversubscription", "0.5"),
                      ("--nodes-per-switch", "0")):
            process = plan(*cluster, *wrong)
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(wrong[-2] if len(wrong) > 2 else "--nodes-per-switch", process.stderr)

    def test_one_mp_and_both_passes(self):
        _, forward = self.ranked("--nodes", "3,1", "--mp", "2")
        _, both = self.ranked("--nodes", "3,1", "--mp", "2", "--pass", "both")
        self.assertEqual({choice["grid"]["nMp"] for choice in both["choices"]}, {2})
        self.assertGreater(both["choices"][0]["seconds"], forward["choices"][0]["seconds"])

    def test_no_tokens_and_one_rank(self):
        _, ranking = self.ranked("--nodes", "1", layer=LAYER.replace("tokens=256", "tokens=0"))
        self.assertEqual(ranking["choices"][0]["communication"], 0)

    def test_a_profile_of_other_nodes_counts(self):
        nodes = ("--nodes", "3x4", "--mp", "1")
        layer = LAYER.replace("experts=32", "experts=12")
        _, typical = self.ranked(*nodes, layer=layer)
        _, slow = self.ranked(*nodes, "--profile", OPTIONS.profile, layer=layer)
        self.assertFalse(any(choice["measured"] for choice in slow["choices"]))
        self.assertGreater(slow["choices"][0]["communication"],
                           10 * typical["choices"][0]["communication"])

    def test_wrong_arguments_are_named(self):
        for arguments, text in ((("--nodes", "two"), "as in 2x4"),
                                (("--nodes", "4", "--mp", "3"), "3 does not divide the 4 ranks"),
                                (("--nodes", "4", "--profile", "/nowhere"), "/nowhere")):
            process = plan(*arguments)
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(text, process.stderr)
        process = plan("--nodes", "5")
        self.assertEqual(process.returncode, 1)
        self.assertIn("divides experts=32", process.stderr)
        process = plan("--nodes", "4", "--profile", __file__)
        self.assertEqual(process.returncode, 1)
        self.assertIn("predict_test.py", process.stderr)

    def test_files_that_cannot_be_written_are_found_first(self):
        process = plan("--nodes", "4", "--json", "/nowhere/x.json")
        self.assertEqual((process.returncode, process.stdout), (1, ""))
        self.assertIn("--json: cannot write /nowhere/x.json: No such file", process.stderr)

    def test_an_old_file_stays_where_there_is_no_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            said = []
            for ranks, code in (("4", 0), ("5", 1), ("4", 0)):
                process = plan("--nodes", ranks, "--json", path)
                self.assertEqual(process.returncode, code, process.stderr)
                with open(path, encoding="utf-8") as file:
                    said.append(json.load(file))
            self.assertEqual(said, said[:1] * 3)

    def test_large_clusters(self):
        """How long it takes is printed, for people."""
        for nodes in (64, 512):
            began = time.monotonic()
            _, ranking = self.ranked("--nodes", f"{nodes}x8", "--mp", "8",
                                     layer=LAYER.replace("hidden=256", f"hidden={nodes * 8 // 32}"))
            print(f"{nodes * 8} ranks: {time.monotonic() - began:.2f} s for "
                  f"{len({str(choice['grid']) for choice in ranking['choices']})} grids", file=sys.stderr)
            self.assertTrue(ranking["choices"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True)
    parser.add_argument("--profile", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
