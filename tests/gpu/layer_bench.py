#!/usr/bin/env python3
"""Times a layer of one rank in 16 bits on a GPU beside the same layer in PyTorch, in one run.

    layer_bench.py RANKS_GPU

RANKS_GPU is the program that tests/run_gpu.sh builds. Both compute a softmax gate with k choices and experts of two
products with a GELU between them, without biases: dropless, where every choice reaches its expert, and with a
capacity (schedule S1), where places are given to first choices before second ones, in token order. "both" is forward
and backward. PyTorch runs as it is (eager), and compiled; dropless it sorts choices by expert and goes through the
experts one by one, with a capacity it multiplies all of them at once (torch.bmm).
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from measured import milliseconds, note


class Layer:
    """The layer of a row that RANKS_GPU has measured."""

    def __init__(self, torch, row):
        self.torch = torch
        self.choices = row["choices"]
        self.experts = row["experts"]
        self.capacity = -(-int(row["capacity_factor"] * self.choices * row["tokens"]) // self.experts)
        options = {"device": "cuda", "dtype": getattr(torch, row["type"]), "requires_grad": True}
        rows, width, hidden = row["tokens"], row["embedding"], row["hidden"]
        self.tokens = torch.rand(rows, width, **options)
        self.slopes = torch.rand(rows, width, device="cuda", dtype=options["dtype"])
        self.gate = torch.randn(width, self.experts, **options)
        self.w1 = torch.randn(self.experts, width, hidden, **options)
        self.w2 = torch.randn(self.experts, hidden, width, **options)

    def route(self):
        """Weights and experts [tokens][choices]."""
        probabilities = self.torch.softmax((self.tokens @ self.gate).float(), dim=1)
        best, chosen = self.torch.topk(probabilities, self.choices, dim=1)
        if self.choices > 1:
            best = best / best.sum(dim=1, keepdim=True)
        return best, chosen

    def dropless(self):
        torch = self.torch
        best, chosen = self.route()
        order = chosen.reshape(-1).argsort(stable=True)
        rows = self.tokens[order // self.choices]
        results = []
        counts = torch.bincount(chosen.reshape(-1), minlength=self.experts).tolist()
        for expert, part in enumerate(rows.split(counts)):
            hidden = torch.nn.functional.gelu(part @ self.w1[expert])
            results.append(hidden @ self.w2[expert])
        weighted = torch.cat(results).float() * best.reshape(-1)[order, None]
        sums = torch.zeros(self.tokens.shape, device="cuda").index_add(0, order // self.choices, weighted)
        return sums.to(self.tokens.dtype)

    def with_capacity(self):
        torch = self.torch
        best, chosen = self.route()
        # [choices x tokens][experts]: first choices of all tokens come first.
        mask = torch.nn.functional.one_hot(chosen.t().reshape(-1), self.experts)
        places = ((torch.cumsum(mask, dim=0) - 1) * mask).sum(dim=1).reshape(self.choices, -1).t()
        kept = places < self.capacity
        # What has no place goes behind all places.
        at = torch.where(kept, chosen * self.capacity + places, self.experts * self.capacity)
        width = self.tokens.shape[1]
        rows = torch.zeros(self.experts * self.capacity + 1, width, device="cuda", dtype=self.tokens.dtype)
        rows = rows.index_put((at.reshape(-1),), self.tokens.repeat_interleave(self.choices, dim=0))
        hidden = torch.nn.functional.gelu(torch.bmm(rows[:-1].reshape(self.experts, self.capacity, width), self.w1))
        results = torch.bmm(hidden, self.w2).reshape(-1, width)
        results = torch.cat((results, torch.zeros(1, width, device="cuda", dtype=results.dtype)))[at]
        return (results.float() * (best * kept)[..., None]).sum(dim=1).to(self.tokens.dtype)


def compare(torch, row):
    layer = Layer(torch, row)
    forward = layer.dropless if row["layer"] == "dropless" else layer.with_capacity
    for name, function in (("eager", forward), ("compiled", torch.compile(forward))):
        try:
            with torch.no_grad():
                alone = milliseconds(torch, function)
            both = milliseconds(torch, lambda f=function: f().backward(layer.slopes))
        except Exception as error:  # no compiler for it on this machine, or no memory
            print(f"{row['type']:10}{row['layer']:10}{name:10}  {str(error).splitlines()[0]}")
            continue
        print(f"{row['type']:10}{row['layer']:10}{name:10}{alone:12.3f}{both:12.3f}"
              f"{alone / row['forward_ms']:14.2f}{both / row['both_ms']:12.2f}", flush=True)
        note({**row, "by": f"PyTorch {torch.__version__}, {name}", "forward_ms": alone, "both_ms": both})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = pathlib.Path(folder) / "rows"
        done = subprocess.run([options.program, "--bench", "--nodes", "1", "layer"],
                              env={**os.environ, "MEASUREMENTS": str(measured)})
        if done.returncode != 0:
            sys.exit(done.returncode)
        rows = [json.loads(line) for line in measured.read_text().splitlines()]
    for row in rows:
        note({**row, "by": "moeccl"})
    try:
        import torch
    except ImportError:
        print(f"not beside PyTorch: {sys.executable} has none; install it: {sys.executable} -m pip install torch")
        return
    if not torch.cuda.is_available():
        print(f"not beside PyTorch: {torch.__version__} of {sys.executable} sees no GPU")
        return
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}; times, and how many times ours\n"
          f"{'type':10}{'':10}{'':10}{'forward, ms':>12}{'both, ms':>12}{'forward, x':>14}{'both, x':>12}")
    for row in rows:
        compare(torch, row)


if __name__ == "__main__":
    main()
