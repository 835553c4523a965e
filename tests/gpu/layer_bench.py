#!/usr/bin/env python3
"""Times a layer of one rank in bfloat16 on a GPU beside the same layer in PyTorch, in one run.

    layer_bench.py RANKS_GPU [--compiled]

RANKS_GPU is the program that tests/run_gpu.sh builds. Both compute a softmax gate with k choices and experts of two
products with a GELU between them, without biases: dropless, where every choice reaches its expert, and with a
capacity (schedule S1), where places are given to first choices before second ones, in token order. "both" is forward
and backward. PyTorch runs as it is (eager), or compiled: dropless layers of 128 tokens and more then, since it takes
long. Dropless it sorts choices by expert, takes rows by index_select, multiplies them by grouped_mm and adds them up by
index_add; with a capacity it multiplies all experts at once (bmm).
"""
import argparse
import sys

from measured import first_line, measured_by, microseconds, note, tell, usable_torch


class Layer:
    """The layer of a row that RANKS_GPU has measured."""

    def __init__(self, torch, row, matrices):
        self.torch = torch
        self.choices = row["choices"]
        self.experts = row["experts"]
        self.capacity = -(-int(row["capacity_factor"] * self.choices * row["tokens"]) // self.experts)
        options = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
        self.tokens = torch.rand(row["tokens"], row["embedding"], **options)
        self.slopes = torch.rand(row["tokens"], row["embedding"], device="cuda", dtype=torch.bfloat16)
        self.gate, self.w1, self.w2 = matrices
        self.multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

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
        ordered, order = chosen.reshape(-1).int().sort(stable=True)
        ends = torch.searchsorted(ordered, torch.arange(self.experts, device="cuda", dtype=torch.int32), right=True)
        of_token, ends = order // self.choices, ends.int()
        hidden = torch.nn.functional.gelu(self.multiply(self.tokens.index_select(0, of_token), self.w1, offs=ends))
        weighted = self.multiply(hidden, self.w2, offs=ends).float() * best.reshape(-1)[order, None]
        sums = torch.zeros(self.tokens.shape, device="cuda").index_add(0, of_token, weighted)
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


def compare(torch, row, matrices, compiled):
    """Whether there is a time to compare with. matrices: those of one number of experts, which this replaces."""
    try:
        if row["experts"] not in matrices:
            matrices.clear()
            torch.cuda.empty_cache()
            matrices[row["experts"]] = matrices_of(torch, row)
        layer = Layer(torch, row, matrices[row["experts"]])
        function = layer.dropless if row["layer"] == "dropless" else layer.with_capacity
        name = f"PyTorch, {'compiled' if compiled else 'eager'}"
        if compiled:
            function = torch.compile(function, dynamic=False)
        measured = {"forward_ms": microseconds(torch, no_gradients(torch, function), captured=False) / 1e3}
        if "both_ms" in row:
            measured["both_ms"] = microseconds(torch, lambda turn: function().backward(layer.slopes),
                                               captured=False) / 1e3
    except Exception as error:  # no compiler for it on this machine, or no memory
        print(f"{row['layer']:10}{row['tokens']:8}{row['experts']:6}  {first_line(error)}", flush=True)
        return False
    print(f"{row['layer']:10}{row['tokens']:8}{row['experts']:6}" + "".join(
        f"{ms:14.3f}{ms / row[field]:9.2f}" for field, ms in measured.items()) + f"  {name}", flush=True)
    note({**{field: value for field, value in row.items() if not field.endswith("_ms")}, **measured, "by": name})
    return True


def no_gradients(torch, function):
    def work(turn):
        with torch.no_grad():
            function()

    return work


def matrices_of(torch, row):
    options = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    sizes = row["experts"], row["embedding"], row["hidden"]
    return (torch.randn(row["embedding"], row["experts"], **options), torch.randn(*sizes, **options),
            torch.randn(sizes[0], sizes[2], sizes[1], **options))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--compiled", action="store_true", help="torch.compile(dynamic=False), which takes minutes")
    options = parser.parse_args()
    code, rows = measured_by([options.program, "--bench", "--nodes", "1", "layer"])
    if options.compiled:
        rows = [row for row in rows if row.get("layer") == "dropless" and row["tokens"] >= 128]
    torch = usable_torch()
    if code or not torch:
        tell([False for _ in rows])
        sys.exit(code)
    print("Times, and how many times ours\n"
          f"{'':10}{'tokens':>8}{'E':>6}{'forward, ms':>14}{'x ours':>9}{'both, ms':>14}{'x ours':>9}")
    matrices = {}
    tell([compare(torch, row, matrices, options.compiled) for row in rows])


if __name__ == "__main__":
    main()
