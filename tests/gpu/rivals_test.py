#!/usr/bin/env python3
"""Runs on the CPU what kernel_bench.py times beside kernels on a GPU, and holds its gradients against autograd's.

    rivals_test.py
"""
import unittest

import torch

from kernel_bench import RIVALS, Problem

ROW = {"type": "bfloat16", "tokens": 24, "embedding": 128, "experts": 64, "choices": 8, "bytes": 1e9}


class Rivals(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def test_each_runs(self):
        for kernel, make in RIVALS.items():
            # Rows by lists have no experts; each expert chooses where experts do.
            sizes = {"experts": 0} if "by lists" in kernel or "terms" in kernel else {}
            sizes |= {"choices": 64} if "expertChoice" in kernel else {}
            for tokens in (1, 24):
                with self.subTest(kernel, tokens=tokens):
                    works = list(make(Problem(torch, ROW | sizes | {"tokens": tokens}, "cpu")))
                    self.assertTrue(works)
                    for _, work in works:
                        work(0)

    def work(self, make, **sizes):
        ((_, work),) = make(Problem(torch, ROW | sizes, "cpu"))
        return work

    def close(self, found, wanted):
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0.05, atol=0.05 * wanted.abs().max().item())

    def inside(self, work):
        """What a work refers to, by name."""
        return dict(zip(work.__code__.co_freevars, (cell.cell_contents for cell in work.__closure__)))

    def test_gradients_of_softmax(self):
        work = self.work(Problem.differentiate_softmax)
        own = self.inside(work)
        logits = own["logits"][0].clone().requires_grad_()
        best = logits.softmax(dim=1).gather(1, own["chosen"])
        (wanted,) = torch.autograd.grad(best / best.sum(dim=1, keepdim=True), logits, own["of_weights"])
        self.close(work(0), wanted)

    def test_gradients_of_a_sigmoid_gate(self):
        work = self.work(Problem.router_backward)
        own = self.inside(work)
        before = own["slopes"].clone()
        logits = own["logits"][0].clone().requires_grad_()
        best = logits.sigmoid().gather(1, own["chosen"])
        (of_logits,) = torch.autograd.grad(best / best.sum(dim=1, keepdim=True), logits, own["of_weights"])
        work(0)
        self.close(own["of_gate"], own["tokens"].float().t() @ of_logits)
        self.close(own["slopes"], before.float() + of_logits @ own["gate"].float().t())

    def test_gradients_of_weighed_sums(self):
        work = self.work(Problem.add_backward)
        own = self.inside(work)
        index = own["self"].index
        rows = own["rows"][0].float().requires_grad_()
        weights = own["weights"].float().requires_grad_()
        sums = torch.zeros(ROW["tokens"], ROW["embedding"]).index_add(0, index, rows * weights)
        wanted = torch.autograd.grad(sums, (rows, weights), own["slopes"][0].float())
        of_rows, of_weights = work(0)
        self.close(of_rows, wanted[0])
        self.close(of_weights, wanted[1].reshape(-1))

    def test_gradients_of_experts(self):
        work = self.work(Problem.grouped_backward, experts=8)
        own = self.inside(work)
        rows, w1, w2 = (own[name].clone().requires_grad_() for name in ("rows", "w1", "w2"))
        # The work keeps what lies between; here it follows from the rows.
        own["between"].copy_(own["multiply"](rows, w1, offs=own["ends"]))
        hidden = torch.nn.functional.gelu(own["multiply"](rows, w1, offs=own["ends"]))
        output = own["multiply"](hidden, w2, offs=own["ends"])
        of_rows, of_w1, of_w2 = torch.autograd.grad(output, (rows, w1, w2), own["slopes"])
        for found, wanted in zip(work(0), (of_w2, of_w1, of_rows)):
            self.close(found, wanted)


if __name__ == "__main__":
    unittest.main()
