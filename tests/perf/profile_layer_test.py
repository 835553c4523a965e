#!/usr/bin/env python3
"""Tests profile_layer.py and the program that it samples: profile_layer_test.py SCRIPT ONE_LAYER."""
import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest

SCRIPT = ONE_LAYER = None  # set in main
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def module():
    spec = importlib.util.spec_from_file_location("profile_layer", SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Phases(unittest.TestCase):
    def test_the_innermost_function_decides(self):
        layer = ["moeccl::(anonymous namespace)::S1::forward(long)", "moecclMoeForward", "main"]
        expert = ["moeccl::expertForward(moeccl::Activation, long)", *layer]
        for stack, phase in [
                (["sgemm_kernel_X", "sgemm_nn", "cblas_sgemm", *expert], "matrix products of experts"),
                (["sgemm_kernel_X", "cblas_sgemm", "moeccl::gates::Gate<float>::multiplyBlock(long)", *layer],
                 "gate: logits and their gradients"),
                (["moeccl::runAvx2<moeccl::(anonymous namespace)::Forward<moeccl::(anonymous namespace)::Gelu>, long>",
                  *expert], "activation"),
                (expert, "biases of experts"),
                (["__memmove", "moeccl::scatterTokens(moeccl::Choices const&)", *layer], "permute"),
                (["moeccl::scatterTokensBackward(moeccl::Choices const&)", *layer], "un-permute"),
                (["__memmove", "moeccl::HostRun::copy()", "moecclDispatch", *layer], "communication"),
                (["__memmove", *layer], "the layer's own copies"),
                (["random()", "main"], "outside the layer"),
                (["[unknown]"], "unknown")]:
            self.assertEqual(module().phase_of(stack), phase, stack)

    def test_samples_of_the_time_alone(self):
        text = "1.5:\n\tff f\n\tee main\n\n2.5:\n\tff g(int, int)\n\n3.5:\n\tff h\n\n"
        self.assertEqual(list(module().stacks(text, 2, 3)), [["g(int, int)"]])

    def test_every_function_of_the_kernels_has_a_phase(self):
        names = set()
        for header in ["activation.h", "capacity.h", "expert.h", "permute.h"]:
            with open(os.path.join(ROOT, "kernels", header), encoding="utf-8") as file:
                names |= set(re.findall(r"^(?:template.*\n)?void (\w+)\(", file.read(), re.MULTILINE))
        self.assertIn("combineTokens", names)
        for name in names:
            self.assertNotIn(module().phase_of([f"void moeccl::{name}(long)", "moecclMoeForward", "main"]),
                             ["communication", "the layer's own copies"], name)

    def test_shares(self):
        profile = module()
        counts = profile.collections.Counter({profile.PRODUCTS: 70, profile.COMMUNICATION: 20, "permute": 10})
        self.assertIn("| **all but products and communication** | 10.00 [10.00, 10.00] | 12.50 [12.50, 12.50] |",
                      profile.table([counts]))


class OneLayer(unittest.TestCase):
    def run_program(self, *arguments):
        return subprocess.run([ONE_LAYER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60)

    def test_tells_when(self):
        done = self.run_program("--tokens", "8", "--embedding", "4", "--hidden", "4", "--pass", "both", "--passes", "3")
        report = json.loads(done.stdout)
        self.assertEqual((report["rank"], report["passes"]), (0, 3))
        self.assertLess(report["begin"], report["end"])

    def test_refuses_a_schedule_that_there_is_not(self):
        done = self.run_program("--schedule", "S3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("S3", done.stderr)

    def test_refuses_a_layer_that_cannot_be(self):
        done = self.run_program("--top-k", "9")
        self.assertEqual(done.returncode, 1)
        self.assertIn("topK", done.stderr)


if __name__ == "__main__":
    SCRIPT, ONE_LAYER = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
