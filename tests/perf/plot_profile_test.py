#!/usr/bin/env python3
"""Tests plot_profile.py on a small profile: plot_profile_test.py SCRIPT. 77 (skipped) where matplotlib is missing."""
import colorsys
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = None  # set in main


def curve(collective, algorithm, where, alpha, beta):
    samples = [{"bytes": 4 ** i, "seconds": (alpha + beta * 4 ** i) * (1 + i % 3 / 10), "spread": i / 10}
               for i in range(4, 9)]
    return {"collective": collective, "algorithm": algorithm, "where": where, "samples": samples,
            "fit": {"alpha": alpha, "beta": beta, "r2": 0.9, "medianError": 0.1, "worstError": 0.2}}


PROFILE = {
    "schema": "moeccl-profile", "schemaVersion": 2,
    "fingerprint": {"ranksPerNode": [2, 2], "processor": "<some> & any", "processorsPerNode": 2,
                    "transport": "UCX", "library": "0.1.0"},
    "date": "2026-01-02T03:04:05Z", "command": "moeccl-fit --grids '2x2x2'", "duration": 125.4,
    "curves": [curve("alltoall", "linear", "2x2", 1e-5, 1e-9), curve("alltoall", "bruck", "2x2", 1e-6, 0),
               curve("alltoall", "bruck:radix=4", "2x2", 2e-6, 2e-9),
               *(curve(name, "linear", "1x2", 1e-5, 1e-9) for name in "abcde")],
    "local": {"forward": {"fit": {"seconds": {"layer": 1e-6, "gate": 1e-10}, "r2": 1, "medianError": 0,
                                  "worstError": 0},
                          "samples": [{"tokens": 64, "embedding": 8, "hidden": 8, "experts": 8, "choices": 2,
                                       "rows": 128, "seconds": 1e-3, "spread": 0}]}},
    "links": {"costs": {"overheadInNode": 1e-6, "latencyInNode": 2e-6, "betaInNode": 5e-10, "overheadBetween": 1e-5,
                        "latencyBetween": 3e-5, "betaBetween": 4e-9, "gapUplink": 7e-6, "betaUplink": 8e-9,
                        "crowding": 0, "betaMemory": 1e-10}, "medianError": 0.12, "worstError": 0.9},
}


def choice(seconds):
    return {"seconds": seconds, "communication": 0, "measured": seconds > 1, "exchanges": ""}


MAP = {"schema": "moeccl-map", "schemaVersion": 1, "ranksPerNode": [2, 2], "maps": [
    {"grid": {"nMp": 2, "nEp": 2, "nEsp": 2, "order": order}, "pass": "both",
     "layer": {"embedding": 64, "hiddenPerEmbedding": 2, "experts": 8, "topK": 2, "capacityFactor": 1},
     "x": {"name": "tokens", "values": [64, 128]}, "y": {"name": name, "values": [1, 2]},
     "cells": [[{"S1": choice(1), "S2": choice(2)}, {"S1": choice(3)}],
               [{"baseline": choice(1), "new": choice(0.5)}, {"PPMoE": choice(1), "S2": choice(20)}]]}
    for order in ("EspEp", "EpEsp") for name in ("embedding", "kf")]}


def pair(where, *samples):
    return {**curve("alltoall", "linear", where, 1e-5, 0), "samples": [
        {"bytes": size, "seconds": seconds, "spread": 0.1} for size, seconds in samples]}


class Plot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path

    def plot(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=100)

    def test_a_page_with_all(self):
        page = os.path.join(self.folder, "report.html")
        process = self.plot("--output", page, "--map", self.write("map.json", MAP), self.write("p.json", PROFILE))
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertNotIn("Warning", process.stderr)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        # The fastest algorithms; maps; five collectives of a group are two pictures; local work.
        self.assertEqual(text.count("data:image/png;base64,iVBOR"), 1 + 2 + 1 + 2 + 1)
        for words in ("Ranks 2x2", "linear", "10 µs", "bruck:radix=4", "1 GB/s", "&lt;some&gt; &amp; any",
                      "Local work, forward", "N_MP 2, N_EP 2, N_ESP 2, EP first",
                      "Measured on 2026-01-02T03:04:05Z in 2:05 min", "moeccl-fit --grids &#x27;2x2x2&#x27;"):
            self.assertIn(words, text)
        # Its contents name every part, the answers first.
        headings = re.findall(r'<h2 id="(\d+)">(.*?)</h2>', text)
        self.assertEqual(headings, re.findall(r'<li><a href="#(\d+)">(.*?)</a></li>', text))
        self.assertEqual([heading for _, heading in headings],
                         ["The fastest algorithms", "The fastest schedules", "Ranks 2x2", "Ranks 1x2", "Local work, forward"])
        # Tables are folded behind pictures.
        self.assertNotIn("<table>", re.sub("<details>.*?</details>", "", text, flags=re.DOTALL))
        self.assertNotIn("may be wrong", text)

    def test_doubts_come_first(self):
        page = os.path.join(self.folder, "report.html")
        process = self.plot("--output", page, self.write("p.json", {**PROFILE, "doubts": ["it was <busy>", "again"]}))
        self.assertEqual(process.returncode, 0, process.stderr)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("<p>it was &lt;busy&gt;</p>", text[:text.index("<h2")])
        self.assertIn("and 1 more", text)

    def test_colours_are_neither_red_nor_green(self):
        spec = importlib.util.spec_from_file_location("plot_profile", SCRIPT)
        sys.path.insert(0, os.path.dirname(SCRIPT))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for colour in (*module.COLOURS, *module.SCHEDULE_COLOURS.values(), module.OTHER_COLOUR):
            hue, saturation, value = colorsys.rgb_to_hsv(*(int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)))
            if saturation > 0.5 and value > 0.2:
                self.assertGreater(min(abs(360 * hue - other) for other in (0, 120, 360)), 10 if value < 0.6 else 25, colour)

    def test_it_begins_with_the_answer(self):
        def of(algorithm, *seconds):
            return {**curve("alltoall", algorithm, "2x2", 1e-5, 0), "samples": [
                {"bytes": 1024 * 4 ** i, "seconds": each, "spread": 0.1} for i, each in enumerate(seconds)]}
        page = os.path.join(self.folder, "report.html")
        # Linear leads by 5 % where both spread by 10 %, then by far; at the last size it is alone.
        curves = [of("bruck", 1, 2.1, 9), of("linear", 3, 2, 3, 4),
                  # Half of the bytes goes to the other rank. Two pairs share the uplink.
                  pair("1x2, alone", (256, 10e-6), (65536, 32.768e-6)), pair("2x1", (256, 30e-6), (65536, 327.68e-6))]
        process = self.plot("--output", page, "--map", self.write("map.json", MAP),
                            self.write("p.json", {**PROFILE, "curves": curves}))
        self.assertEqual(process.returncode, 0, process.stderr)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        text = text[:text.index("Ranks 2x2</h2>")]
        for cells in (("in a node", "10 µs", "1 GB/s", "not measured"), ("between nodes", "30 µs", "not measured", "0.2 GB/s"),
                      ("alltoall of 2x2", "bruck", "1K to 1K", "3.00", "1 of 1"),
                      ("alltoall of 2x2", "linear", "4K to 16K", "3.00", "1 of 2"),
                      ("N_MP 2, N_EP 2, N_ESP 2", "S1", "4 of 8", "2.00", "2 of 4"),
                      ("N_MP 2, N_EP 2, N_ESP 2", "new", "2 of 8", "2.00", "0 of 2")):
            self.assertIn("".join(f"<td>{cell}</td>" for cell in cells), text)
        self.assertIn("12 % off", text)

    def test_curves_that_say_little_are_marked(self):
        noisy = curve("alltoall", "<new>", "1x2", 1e-5, 0)
        noisy["fit"] = {**noisy["fit"], "medianError": 0.5}
        page = os.path.join(self.folder, "report.html")
        for curves, marked in ((PROFILE["curves"], 0), ([*PROFILE["curves"], noisy], 1)):
            process = self.plot("--output", page, self.write("p.json", {**PROFILE, "curves": curves}))
            self.assertEqual(process.returncode, 0, process.stderr)
            with open(page, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(text.count('<tr class="marked"><td>alltoall</td><td>&lt;new&gt;</td>'), marked)
            self.assertEqual(text.count("<li>alltoall"), marked)
            self.assertEqual("<li>alltoall &lt;new&gt; of 1x2</li>" in text, marked == 1)

    def test_what_samples_do_not_tell_is_no_number(self):
        page = os.path.join(self.folder, "report.html")
        # No call takes less than half of what a pair takes.
        cases = (("1x4", 10e-6, "10 µs"), ("1x4", 4e-6, "-"), ("1x4", 1e-9, "-"), ("2x2", 60e-6, "60 µs"), ("2x2", 40e-6, "-"),
                 ("1@0+2@1+1@0", 40e-6, "-"), ("mp1,ep2,esp2 on 1x2+1x1", 40e-6, "-"), ("mp1,ep2,esp2 on 1x4", 40e-6, "40 µs"))
        curves = [pair("1x2, alone", (256, 10e-6)), pair("2x1, alone", (256, 100e-6)),
                  *(curve("alltoall", f"a{number}", where, alpha, 0) for number, (where, alpha, _) in enumerate(cases))]
        process = self.plot("--output", page, self.write("p.json", {**PROFILE, "curves": curves}))
        self.assertEqual(process.returncode, 0, process.stderr)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for number, (_, _, shown) in enumerate(cases):
            self.assertIn("".join(f"<td>{cell}</td>" for cell in ("alltoall", f"a{number}", shown, "-", "-")), text)

    def test_links_that_no_pair_has_passed_are_no_number(self):
        page = os.path.join(self.folder, "report.html")
        process = self.plot("--output", page, self.write("p.json", {**PROFILE, "curves": [pair("1x2, alone", (8192, 4096e-9))]}))
        self.assertEqual(process.returncode, 0, process.stderr)
        with open(page, encoding="utf-8") as file:
            self.assertIn("".join(f"<td>{cell}</td>" for cell in ("between nodes", *["not measured"] * 3)), file.read())

    def test_files_that_cannot_be_written(self):
        profile = self.write("p.json", PROFILE)
        for option, path, said in (("--output", "/nowhere/report.html", "write /nowhere/report.html: No such file or directory"),
                                   ("--png", profile, f"make {profile}: File exists")):
            process = self.plot(option, path, profile)
            self.assertEqual((process.returncode, process.stderr), (1, f"{SCRIPT}: cannot {said}\n"))

    def test_pictures(self):
        process = self.plot("--png", os.path.join(self.folder, "png"), self.write("p.json", PROFILE))
        self.assertEqual(process.returncode, 0, process.stderr)
        names = ["fastest.png", "group-1x2-0.png", "group-1x2-1.png", "group-2x2-0.png", "local-forward.png"]
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "png"))), names)

    def test_a_profile_without_anything(self):
        empty = {**PROFILE, "curves": []}
        del empty["local"], empty["links"]
        process = self.plot("--output", os.path.join(self.folder, "report.html"), self.write("p.json", empty))
        self.assertEqual(process.returncode, 0, process.stderr)

    def test_no_profile(self):
        process = self.plot("--output", os.path.join(self.folder, "report.html"), self.write("map.json", MAP))
        self.assertEqual(process.returncode, 1)
        self.assertIn("map.json is no moeccl-profile", process.stderr)


def main():
    global SCRIPT
    SCRIPT = sys.argv.pop(1)
    if importlib.util.find_spec("matplotlib") is None:
        print("without matplotlib")
        sys.exit(77)
    unittest.main()


if __name__ == "__main__":
    main()
