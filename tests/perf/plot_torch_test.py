#!/usr/bin/env python3
"""Tests plot_torch.py on the measurements that RESULTS.md shows: plot_torch_test.py SCRIPT CSV. 77 without matplotlib."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = CSV = None


def plot(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Plot(unittest.TestCase):
    def test_it_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            output = os.path.join(folder, "picture.png")
            self.assertEqual(plot("--output", output, CSV).returncode, 0)
            with open(output, "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")

    def test_other_files_are_told(self):
        for path, said in (("nowhere.csv", "cannot read nowhere.csv"), (SCRIPT, "cannot read")):
            done = plot("--output", "never.png", path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit(77)
    SCRIPT, CSV = (os.path.abspath(path) for path in sys.argv[1:3])
    del sys.argv[1:]
    unittest.main()
