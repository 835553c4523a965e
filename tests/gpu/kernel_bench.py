#!/usr/bin/env python3
"""Times kernels on a GPU beside what PyTorch has for the same, in one run.

    kernel_bench.py BENCH_GPU WHAT...

BENCH_GPU is the program that tests/run_gpu.sh --bench builds, and WHAT is what it takes. Both sides are replayed as CUDA
graphs, on buffers that take turns, so that neither waits for the host nor finds its rows in a cache; but where ours has
cuBLAS multiply both are called. PyTorch runs as it is, without torch.compile.
"""
import sys

from measured import first_line, measured_by, microseconds, note, tell, usable_torch

BEYOND_CACHES = 256 << 20
MOST_TURNS = 64


class Problem:
    """Random tensors of the sizes of a row that BENCH_GPU has measured."""

    def __init__(self, torch, row, device="cuda"):
        self.torch, self.device = torch, device
        self.count, self.width = row["tokens"], row["embedding"]
        self.experts, self.choices = row["experts"] or 64, row["choices"]
        self.entries = self.count * self.choices
        self.turns = int(min(max(BEYOND_CACHES / max(row["bytes"], 1), 1), MOST_TURNS))
        self.captured = True  # as tests/gpu/bench has it
        self.chosen = torch.rand(self.count, self.experts, device=self.device).topk(self.choices, dim=1)[1].int()
        self.index = self.chosen.reshape(-1).argsort(stable=True) // self.choices

    def rows(self, count, dtype=None, turns=None):
        return [self.torch.rand(count, self.width, device=self.device, dtype=dtype or self.torch.bfloat16) * 2 - 1
                for _ in range(turns or self.turns)]

    # Each returns what a turn does, as pairs of a name and the work; the fastest counts.

    def select(self):
        tokens = self.rows(self.count)
        yield "index_select", lambda turn: tokens[turn].index_select(0, self.index)

    def pack(self, back):
        """[peers][experts] blocks to [experts][peers], or back, as tests/gpu/bench/layouts.cc has them."""
        peers, local = 8, self.experts // 8
        sizes = (local, peers) if back else (peers, local)
        blocks = [rows.view(*sizes, -1, self.width) for rows in self.rows(self.experts * (self.count // self.experts + 1))]
        yield "transpose, contiguous", lambda turn: blocks[turn].transpose(0, 1).contiguous()

    def add(self, weighted):
        rows = self.rows(self.entries)
        weights = self.torch.full((self.entries, 1), 1 / self.choices, device=self.device, dtype=self.torch.bfloat16)
        output = self.torch.zeros(self.count, self.width, device=self.device, dtype=self.torch.bfloat16)

        def work(turn):
            output.zero_().index_add_(0, self.index, rows[turn] * weights if weighted else rows[turn])

        yield "index_add", work

    def add_backward(self):
        """Of each token's sum of weighed rows: the rows' gradients, and those of the weights."""
        rows, slopes = self.rows(self.entries), self.rows(self.count)
        weights = self.torch.full((self.entries, 1), 1 / self.choices, device=self.device, dtype=self.torch.bfloat16)

        def work(turn):
            of_rows = slopes[turn].index_select(0, self.index)
            return of_rows * weights, (of_rows.float() * rows[turn].float()).sum(dim=1)

        yield "index_select, multiply, sum", work

    def weigh_backward(self):
        gradients, rows = self.rows(self.entries), self.rows(self.entries)
        weights = self.torch.ones(self.entries, 1, device=self.device, dtype=self.torch.bfloat16)

        def work(turn):
            products = (gradients[turn].float() * rows[turn].float()).sum(dim=1)
            gradients[turn].mul_(weights)
            return products

        yield "multiply, sum", work

    def router(self, matrices=1):
        """matrices: 2 for the noisy gate, side by side here."""
        tokens = self.rows(self.count)
        gates = [self.torch.rand(self.width, matrices * self.experts, device=self.device, dtype=self.torch.bfloat16)
                 for _ in range(self.turns)]
        yield "matmul, bfloat16", lambda turn: tokens[turn] @ gates[turn]

    def logits(self):
        return [self.torch.randn(self.count, self.experts, device=self.device) for _ in range(self.turns)]

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

    def router_backward(self):
        """Gradients of gate and tokens, from those of sigmoid's weights."""
        self.captured = False
        torch, logits = self.torch, self.logits()
        (tokens,), (slopes,) = self.rows(self.count, turns=1), self.rows(self.count, turns=1)
        gate = torch.rand(self.width, self.experts, device=self.device, dtype=torch.bfloat16)
        of_weights = torch.rand(self.count, self.choices, device=self.device)
        chosen = self.chosen.long()
        of_gate = torch.zeros(self.width, self.experts, device=self.device, dtype=torch.bfloat16)

        def work(turn):
            scores = logits[turn].sigmoid()
            best = scores.gather(1, chosen)
            sums = best.sum(dim=1, keepdim=True)
            of_best = (of_weights - (of_weights * best).sum(dim=1, keepdim=True) / sums) / sums
            of_logits = torch.zeros_like(scores).scatter_(1, chosen, of_best) * scores * (1 - scores)
            of_logits = of_logits.to(torch.bfloat16)
            of_gate.addmm_(tokens.t(), of_logits)
            slopes.addmm_(of_logits, gate.t())

        yield "matmul, bfloat16", work

    def differentiate_softmax(self):
        self.captured = False
        torch, logits, chosen = self.torch, self.logits(), self.chosen.long()
        of_weights = torch.rand(self.count, self.choices, device=self.device)

        def work(turn):
            probabilities = logits[turn].softmax(dim=1)
            best = probabilities.gather(1, chosen)
            sums = best.sum(dim=1, keepdim=True)
            of_best = (of_weights - (of_weights * best).sum(dim=1, keepdim=True) / sums) / sums
            slopes = torch.zeros_like(probabilities).scatter_(1, chosen, of_best)
            return probabilities * (slopes - (slopes * probabilities).sum(dim=1, keepdim=True))

        yield "softmax, gather, scatter", work

    def place(self):
        """Places in token order, first choices before second ones."""
        torch, first = self.torch, self.chosen.t().reshape(-1).long()

        def work(turn):
            mask = torch.nn.functional.one_hot(first, self.experts)
            return (mask.cumsum(dim=0) - 1).gather(1, first[:, None])

        yield "one_hot, cumsum", work

    def place_by_experts(self):
        scores = [logits.softmax(dim=1).t().contiguous() for logits in self.logits()]
        # As tests/gpu/bench/gate.cc has places: a quarter more than tokens need.
        capacity = min(self.count, -(-self.count * 8 // self.experts) * 5 // 4 + 1)
        yield "topk", lambda turn: scores[turn].topk(capacity, dim=1)

    def list(self):
        edges = self.torch.arange(self.experts + 1, device=self.device, dtype=self.torch.int32)

        def work(turn):
            ordered, places = self.chosen.reshape(-1).sort(stable=True)
            return places, self.torch.searchsorted(ordered, edges)

        yield "sort", work

    def ends(self):
        """Where each expert's rows end, as tests/gpu/bench/experts.cc has them."""
        shares = [3 + expert % 3 for expert in range(self.experts)]
        sums = [sum(shares[:expert + 1]) for expert in range(self.experts)]
        ends = [before * self.entries // sums[-1] for before in sums]
        return self.torch.tensor(ends, device=self.device, dtype=self.torch.int32)

    def grouped(self, products):
        self.turns, self.captured = 1, False
        torch, hidden, ends = self.torch, 2048, self.ends()
        multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        (rows,) = self.rows(self.entries, turns=1)

        def matrix(inner, outer, transposed):
            sizes = (self.experts, outer, inner) if transposed else (self.experts, inner, outer)
            made = torch.rand(*sizes, device=self.device, dtype=torch.bfloat16) * 0.1 - 0.05
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

    def grouped_backward(self):
        """Of experts' two products with a GELU between, which keep what lies between."""
        self.turns, self.captured = 1, False
        torch, hidden, ends = self.torch, 2048, self.ends()
        multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        (rows,), (slopes,) = self.rows(self.entries, turns=1), self.rows(self.entries, turns=1)
        options = {"device": self.device, "dtype": torch.bfloat16}
        w1 = torch.rand(self.experts, self.width, hidden, **options) * 0.1 - 0.05
        w2 = torch.rand(self.experts, hidden, self.width, **options) * 0.1 - 0.05
        between = torch.rand(self.entries, hidden, **options) * 2 - 1

        def work(turn):
            active = torch.nn.functional.gelu(between)
            of_active = multiply(slopes, w2.transpose(1, 2), offs=ends)
            of_between = torch.ops.aten.gelu_backward(of_active, between)
            return (multiply(active.t(), slopes, offs=ends), multiply(rows.t(), of_between, offs=ends),
                    multiply(of_between, w1.transpose(1, 2), offs=ends))

        yield "grouped_mm", work

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
        scales = torch.rand(self.count * self.width // 128, 1, device=self.device)
        yield "multiply", lambda turn: (quantised[turn].float() * scales).to(torch.bfloat16)

    def sum(self):
        terms = [self.torch.stack(self.rows(self.count, turns=8)) for _ in range(self.turns)]
        yield "sum", lambda turn: terms[turn].sum(dim=0)


RIVALS = {
    "permute": Problem.select, "gathering listed rows": Problem.select, "copying rows by lists": Problem.select,
    "pack": lambda problem: problem.pack(False), "unpack": lambda problem: problem.pack(True),
    "un-permute": lambda problem: problem.add(True), "adding listed rows": lambda problem: problem.add(True),
    "adding rows by lists": lambda problem: problem.add(True),
    "permute backward": lambda problem: problem.add(False), "gathering backward": lambda problem: problem.add(False),
    "un-permute backward": Problem.add_backward, "adding backward": Problem.add_backward,
    "weighing gradients": Problem.weigh_backward, "gate backward": Problem.router_backward,
    "differentiating softmax": Problem.differentiate_softmax, "experts backward": Problem.grouped_backward,
    "placing, softmax": Problem.place, "placing, expertChoice": Problem.place_by_experts,
    "router product": Problem.router, "router product, noisy": lambda problem: problem.router(2),
    "choosing": Problem.choose, "choosing by softmax": Problem.choose_by_softmax,
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
    """Whether there is a time to compare with."""
    sizes = {size: row[size] for size in ("type", "tokens", "embedding", "experts", "choices")}
    measured = False
    try:
        torch.cuda.empty_cache()
        problem = Problem(torch, row)
        for name, work in RIVALS[row["kernel"]](problem):
            us = microseconds(torch, work, problem.turns, problem.captured)
            note({"rival": row["kernel"], **sizes, "by": name, "us": us})
            measured = True
            print(f"{row['kernel']:32}{row['tokens']:8}{row['experts']:6}{us:12.2f}{us / row['us']:10.2f}  {name}",
                  flush=True)
    except Exception as error:  # this PyTorch has no such function, or the GPU no memory
        print(f"{row['kernel']:32}{row['tokens']:8}{row['experts']:6}  {first_line(error)}", flush=True)
    return measured


def after(torch, work):
    """PyTorch's module once work(torch) is done; None where it fails, as all does behind some errors of CUDA."""
    try:
        if torch:
            work(torch)
        return torch
    except Exception as error:
        print(f"not beside PyTorch: {first_line(error)}", flush=True)
        return None


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    codes, beside, torch = [], [], after(usable_torch(), measure_product)
    # A process for each, so that a fault of one kernel is not the end of all.
    for what in ("copy", *sys.argv[2:]):
        torch = after(torch, lambda torch: torch.cuda.empty_cache())  # what the last comparison had
        code, rows = measured_by([sys.argv[1], what])
        codes.append(code)
        rows = [row for row in rows if "kernel" in row]
        if torch and rows:
            print(f"\nPyTorch's times, and how many times ours\n{'kernel':32}{'tokens':>8}{'E':>6}{'us':>12}{'x ours':>10}")
        # What PyTorch has nothing for is held against a copy.
        beside += [row["kernel"] not in RIVALS or bool(torch and compare(torch, row)) for row in rows]
    tell(beside)
    sys.exit(next((code for code in codes if code), 0))


if __name__ == "__main__":
    main()
