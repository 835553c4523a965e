#!/usr/bin/env python3
"""Tests moeccl-plan as a user starts it: plan_test.py --plan COMMAND"""
import argparse
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest

OPTIONS = None  # set in main


def plan(*arguments, path=None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MOECCL_")}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run([OPTIONS.plan, *arguments], capture_output=True, text=True, timeout=100,
                          stdin=subprocess.DEVNULL, env=environment)


class Plan(unittest.TestCase):
    def printed(self, *arguments, **more):
        process = plan(*arguments, **more)
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def refused(self, *arguments, code=1, **more):
        process = plan(*arguments, **more)
        self.assertEqual(process.returncode, code, process.stdout)
        return process.stderr

    def test_every_algorithm_is_printed_and_verified(self):
        listed, collective = {}, None
        for line in self.printed("--list").splitlines():
            if line.startswith("  "):
                listed[collective].append(line.split(":")[0].strip())
            else:
                collective, grid = line.split(" ")[0], line.endswith("(of a grid)")
                listed[collective, grid] = listed.setdefault((collective, grid), [])
                collective = (collective, grid)
        self.assertEqual(len(listed), 16)
        for (collective, grid), algorithms in listed.items():
            self.assertTrue(algorithms, collective)
            for algorithm in algorithms:
                for nodes, shape in (("2x4", "2x4x2"), ("3,2,3", "2x2x4:ep"), ("1", "1x1x1")):
                    arguments = [collective, "--algorithm", algorithm, "--nodes", nodes, "--quiet", "--verify"]
                    text = self.printed(*arguments, *(["--grid", shape, "--experts", "2"] if grid else []))
                    self.assertIn("verified: every output holds what " + collective, text)

    def test_one_rank_and_all(self):
        every = self.printed("alltoall", "--algorithm", "hierarchical", "--nodes", "4,4,3")
        self.assertRegex(every, r"^alltoall by hierarchical among 11 ranks on 3 nodes: \d+ ops, \d+ messages, ")
        self.assertEqual(re.findall(r"^rank (\d+):", every, re.MULTILINE), [str(rank) for rank in range(11)])
        one = self.printed("alltoall", "--algorithm", "hierarchical", "--nodes", "4,4,3", "--rank", "2")
        self.assertEqual(re.findall(r"^rank (\d+):", one, re.MULTILINE), ["2"])
        self.assertIn(one.split("\n", 1)[1], every)
        # Bruck's: 8 ranks, radix 4: three digits' values and one, of each rank.
        bruck = self.printed("alltoall", "--algorithm", "bruck:radix=4", "--node-of-rank", "0,1,0,1,0,1,0,1", "--quiet")
        self.assertIn("alltoall by bruck:radix=4 among 8 ranks on 2 nodes: ", bruck)
        self.assertIn(f", {8 * (3 + 1)} messages, ", bruck)

    def test_drawings(self):
        with tempfile.TemporaryDirectory() as folder:
            dot, svg = os.path.join(folder, "plan.dot"), os.path.join(folder, "plan.svg")
            self.printed("allgather", "--algorithm", "ring", "--nodes", "2,1", "--dot", dot)
            with open(dot, encoding="utf-8") as file:
                graph = file.read()
            self.assertEqual((graph.count("subgraph cluster_n"), graph.count("subgraph cluster_r")), (2, 3))
            self.assertEqual(graph.count("style=dashed"), 3 * 2)  # its messages
            self.assertIn('label="allgather by ring among 3 ranks on 2 nodes', graph)
            self.printed("allgather", "--algorithm", "ring", "--nodes", "2,1", "--rank", "1", "--dot", dot)
            with open(dot, encoding="utf-8") as file:
                one = file.read()
            self.assertEqual((one.count("subgraph cluster_"), one.count("style=dashed")), (2, 0))

            # What stands in for Graphviz writes its input where it is told to.
            fake = os.path.join(folder, "dot")
            with open(fake, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nout=${2#-o}\n[ "$1" = -Tsvg ] && cat > "$out"\n')
            os.chmod(fake, stat.S_IRWXU)
            self.printed("allgather", "--algorithm", "ring", "--nodes", "2,1", "--svg", svg,
                         path=folder + ":" + os.environ["PATH"])
            with open(svg, encoding="utf-8") as file:
                self.assertEqual(file.read(), graph)
            self.printed("--schedule", "S1", "--svg", svg, path=folder + ":" + os.environ["PATH"])
            with open(svg, encoding="utf-8") as file:
                self.assertTrue(file.read().startswith("digraph schedule {"))
            self.assertIn("dot could not write",
                          self.refused("allgather", "--nodes", "2", "--quiet", "--svg", os.path.join(folder, "no/where"),
                                       path=folder + ":" + os.environ["PATH"]))
            os.remove(fake)
            self.assertIn("there is no dot", self.refused("allgather", "--nodes", "2", "--quiet", "--svg", svg, path=folder))
            self.assertIn("--dot: cannot write /no/where.dot: No such file",
                          self.refused("allgather", "--nodes", "2", "--quiet", "--dot", "/no/where.dot"))

    def test_mistakes_are_named(self):
        for arguments, text in (
                (["alltoal", "--nodes", "2"], 'there is no collective "alltoal"; there are: alltoall, '),
                (["alltoall", "--nodes", "2", "--algorithm", "ring"], 'alltoall has no algorithm "ring"; it has: auto, linear'),
                (["alltoall", "--nodes", "2", "--algorithm", "auto"], "--algorithm: auto depends on sizes"),
                (["alltoall", "--nodes", "2", "--algorithm", "bruck:rdix=2"], 'no parameter "rdix"; there are: window'),
                (["alltoall", "--nodes", "2,2", "--rank", "4"], "--rank: 4 is not below the number of ranks, 4"),
                (["alltoall", "--nodes", "2", "--grid", "1x2x1"], "--grid: alltoall needs none"),
                (["dispatch", "--nodes", "2,2"], "--grid: dispatch is a collective of a grid; give MPxEPxESP"),
                (["dispatch", "--nodes", "2,2", "--grid", "1x3x2"], "--grid: 1x3x2 does not fit; give MPxEPxESP"),
                (["allreduce", "--nodes", "2500", "--algorithm", "ring"],
                 "--algorithm: allreduce does not offer ring here: ring sends 4998 messages")):
            self.assertIn(text, self.refused(*arguments), arguments)
        for arguments, text in (([], "collective: name one; --list prints them"),
                                (["alltoall"], "--nodes: give nodes and their ranks, as in --nodes 2x4"),
                                (["alltoall", "--nodes", "2,0"], '--nodes: "2,0" are no nodes'),
                                (["alltoall", "--nodes", "4096,1"], '--nodes: "4096,1" are more than 4096 ranks'),
                                (["dispatch", "--nodes", "2,2", "--grid", "1,x,2"], '--grid: "1,x,2" is none'),
                                (["dispatch", "--nodes", "2,2", "--grid", "1x2"], "--grid: \"1x2\" is none")):
            self.assertIn(text, self.refused(*arguments, code=2), arguments)

    def test_schedules_are_printed_and_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            dot = os.path.join(folder, "s1.dot")
            text = self.printed("--schedule", "S1", "--chunks", "2", "--dot", dot)
            self.assertIn("schedule S1, forward: 19 phases, 3 streams, 2 chunks", text)
            self.assertIn("schedule S1, backward", text)
            with open(dot) as file:
                self.assertTrue(file.read().startswith("digraph schedule {"))
        self.assertIn("it must be one of baseline, S1, S2, PPMoE", self.refused("--schedule", "S3"))
        self.assertIn("S2 splits the capacity", self.refused("--schedule", "S2", "--dropless"))


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
