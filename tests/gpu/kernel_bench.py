#!/usr/bin/env python3
"""Times kernels on a GPU beside what PyTorch has for the same, in one run.

    kernel_bench.py BENCH_GPU WHAT...

BENCH_GPU is the program that tests/run_gpu.sh --bench builds, and WHAT is what it takes. Both sides are replayed as CUDA
graphs, on buffers that take turns, so that neither waits for the host nor finds its rows in a cache. PyTorch runs as it is,
without torch.compile.
"""
import sys

from measured import measured_by, microseconds, note, usable_torch

BEYOND_CACHES = 256 << 20
MOST_TURNS = 64


class Problem:
    """Random tensors of the sizes of a row that BENCH_GPU has measured."""

    def __init__(self, torch, row):
        self.torch = torch
        self.count, self.width = row["tokens"], row["embedding"]
        self.experts, self.choices = row["experts"] or 64, row["choices"]
        self.entries = self.count * self.choices
        self.turns = int(min(max(BEYOND_CACHES / max(row["bytes"], 1), 1), MOST_TURNS))
        self.chosen = torch.rand(self.count, self.experts, device="cuda").topk(self.choices, dim=1)[1].int()
        self.index = self.chosen.reshape(-1).argsort(stable=True) // self.choices

    def rows(self, count, dtype=None, turns=None):
        return [self.torch.rand(count, self.width, device="cuda", dtype=dtype or self.torch.bfloat16) * 2 - 1
                for _ in range(turns or self.turns)]

    # Each returns what a turn does, as pairs of a name and the work; the fastest counts.

    def select(self):
        tokens = self.rows(self.count)
        yield "index_select", lambda turn: tokens[turn].index_select(0, self.index)

    def add(self, weighted):
        rows = self.rows(self.entries)
        weights = self.torch.full((self.entries, 1), 1 / self.choices, device="cuda", dtype=self.torch.bfloat16)
        output = self.torch.zeros(self.count, self.width, device="cuda", dtype=self.torch.bfloat16)

        def work(turn):
            output.zero_().index_add_(0, self.index, rows[turn] * weights if weighted else rows[turn])

        yield "index_add", work

    def router(self):
        tokens = self.rows(self.count)
        gates = [self.torch.rand(self.width, self.experts, device="cuda", dtype=self.torch.bfloat16)
                 for _ in range(self.turns)]
        yield "matmul, bfloat16", lambda turn: tokens[turn] @ gates[turn]

    def logits(self):
        return [self.torch.randn(self.count, self.experts, device="cuda") for _ in range(self.turns)]

    def choose(self):
        """DeepSeek-V3's, of 8 groups of which 4 serve a token."""
        torch, logits = self.torch, self.logits()

        def work(turn):
            scores = logits[turn].sigmoid()
            of_groups = scores.view(self.count, 8, -1).topk(2, dim=2)[0].sum(dim=2)
            serving = torch.zeros_like(of_groups).scatter_(1, of_groups.topk(4, dim=1)[1], 1)
            masked = (scores.view(self.count, 8, -1) * serving[..., None]).view(self.count, -1)
            best, chosen = masked.topk(self.choices, dim=1)
            return chosen, best / best.sum(dim=1, keepdim=True) * 2.5

        yield "topk", work

    def choose_by_softmax(self):
        logits = self.logits()

        def work(turn):
            best, chosen = logits[turn].softmax(dim=1).topk(self.choices, dim=1)
            return chosen, best / best.sum(dim=1, keepdim=True)

        yield "softmax, topk", work

    def list(self):
        edges = self.torch.arange(self.experts + 1, device="cuda", dtype=self.torch.int32)

        def work(turn):
            ordered, places = self.chosen.reshape(-1).sort(stable=True)
            return places, self.torch.searchsorted(ordered, edges)

        yield "sort", work

    def ends(self):
        """Where each expert's rows end, as tests/gpu/bench/experts.cc has them."""
        shares = [3 + expert % 3 for expert in range(self.experts)]
        sums = [sum(shares[:expert + 1]) for expert in range(self.experts)]
        ends = [before * self.entries // sums[-1] for before in sums]
        return self.torch.tensor(ends, device="cuda", dtype=self.torch.int32)

    def grouped(self, products):
        self.turns = 1
        torch, hidden, ends = self.torch, 2048, self.ends()
        multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        (rows,) = self.rows(self.entries, turns=1)

        def matrix(inner, outer, transposed):
            sizes = (self.experts, outer, inner) if transposed else (self.experts, inner, outer)
            made = torch.rand(*sizes, device="cuda", dtype=torch.bfloat16) * 0.1 - 0.05
            return made.transpose(1, 2) if transposed else made

        # Which layout of the matrices is the fast one depends on the version.
        for transposed in (False, True):
            w1 = matrix(self.width, hidden, transposed)
            w2 = matrix(hidden, self.width, transposed) if products == 2 else None

            def work(turn, w1=w1, w2=w2):
                between = multiply(rows, w1, offs=ends)
                return multiply(torch.nn.functional.gelu(between), w2, offs=ends) if products == 2 else between

            yield "grouped_mm" + (", transposed" if transposed else ""), work
            del w1, w2, work

    def quantise(self):
        torch, rows = self.torch, self.rows(self.count)

        def work(turn):
            groups = rows[turn].view(-1, 128).float()
            scales = groups.abs().amax(dim=1, keepdim=True) / 448
            return (groups / scales).to(torch.float8_e4m3fn), scales

        yield "amax, divide", work

    def dequantise(self):
        torch = self.torch
        quantised = [row.to(torch.float8_e4m3fn).view(-1, 128) for row in self.rows(self.count)]
        scales = torch.rand(self.count * self.width // 128, 1, device="cuda")
        yield "multiply", lambda turn: (quantised[turn].float() * scales).to(torch.bfloat16)

    def sum(self):
        terms = [self.torch.stack(self.rows(self.count, turns=8)) for _ in range(self.turns)]
        yield "sum", lambda turn: terms[turn].sum(dim=0)


RIVALS = {
    "permute": Problem.select, "gathering listed rows": Problem.select, "copying rows by lists": Problem.select,
    "un-permute": lambda problem: problem.add(True), "adding listed rows": lambda problem: problem.add(True),
    "adding rows by lists": lambda problem: problem.add(True),
    "permute backward": lambda problem: problem.add(False), "gathering backward": lambda problem: problem.add(False),
    "router product": Problem.router, "choosing": Problem.choose, "choosing by softmax": Problem.choose_by_softmax,
    "listing by expert": Problem.list, "expert product": lambda problem: problem.grouped(1),
    "experts": lambda problem: problem.grouped(2), "quantise": Problem.quantise, "dequantise": Problem.dequantise,
    "adding 8 terms": Problem.sum,
}


def measure_product(torch):
    """The rate of a large matrix product of random numbers, by which floors count operations."""
    size = 8192
    a, b = (torch.rand(size, size, device="cuda", dtype=torch.bfloat16) * 2 - 1 for _ in range(2))
    us = microseconds(torch, lambda turn: a @ b)
    print(f"a matrix product of {size}: {2 * size**3 / us * 1e-6:.0f} TFLOP/s")
    note({"ceiling": "matrix product", "rate": 2 * size**3 / us * 1e6})


def compare(torch, row):
    sizes = {size: row[size] for size in ("type", "tokens", "embedding", "experts", "choices")}
    try:
        problem = Problem(torch, row)
        for name, work in RIVALS[row["kernel"]](problem):
            us = microseconds(torch, work, problem.turns)
            note({"rival": row["kernel"], **sizes, "by": name, "us": us})
            print(f"{row['kernel']:26}{row['tokens']:8}{row['experts']:6}{us:12.2f}{us / row['us']:10.2f}  {name}",
                  flush=True)
    except Exception as error:  # this PyTorch has no such function, or the GPU no memory
        print(f"{row['kernel']:26}{row['tokens']:8}{row['experts']:6}  {str(error).splitlines()[0]}", flush=True)
    torch.cuda.empty_cache()


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    codes, rows = [], []
    # A process for each, so that a fault of one kernel is not the end of all.
    for what in ("copy", *sys.argv[2:]):
        code, measured = measured_by([sys.argv[1], what])
        codes.append(code)
        rows += [row for row in measured if "kernel" in row]
    if torch := usable_torch():
        print(f"\nPyTorch {torch.__version__} on {torch.cuda.get_device_name()}: times, and how many times ours")
        print(f"{'kernel':26}{'tokens':>8}{'E':>6}{'us':>12}{'x ours':>10}")
        measure_product(torch)
        for row in rows:
            if row["kernel"] in RIVALS:
                compare(torch, row)
    sys.exit(next((code for code in codes if code), 0))


if __name__ == "__main__":
    main()
