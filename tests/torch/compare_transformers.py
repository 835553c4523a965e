#!/usr/bin/env python3
"""Expert parallelism of transformers: its own exchange on Gloo and on moeccl, and ep_implementation="moeccl".

    perf/moeccl-lab run --no-prefix -- VENV/bin/python tests/torch/compare_transformers.py [OPTIONS]

One layer of 64 experts, top-8, of 2048 elements, 256 tokens per rank, forward and backward; experts are narrow, so what is
compared is the exchange. All live in one job and take turns; see compare.py. --by names who takes part. The first one's times
are divided by the others':

    gloo      AllToAllEP on Gloo
    moeccl    AllToAllEP on cpu:moeccl
    layer     ep_implementation="moeccl"
    float8    the same, whose tokens travel as float8
"""
import argparse
import contextlib
import json
import subprocess
import sys

import torch
import torch.distributed as dist
from compare import Job, summary
from transformers import Qwen3MoeConfig
from transformers.distributed.expert_parallel import AllToAllEP
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from moeccl.torch.transformers_ep import MoecclEP

EXPERTS, CHOICES, WIDTH = 64, 8, 16
MODELS = {"gloo": "AllToAllEP on Gloo", "moeccl": "AllToAllEP on moeccl", "layer": 'ep_implementation="moeccl"',
          "float8": "the same, float8"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# How far results may be off, of the largest.
BOUNDS = {"float32": 1e-5, "bfloat16": 3e-2, "float8": 0.1}


class Mesh:
    """What an implementation asks of a mesh of one dimension."""

    def __init__(self, group):
        self.group = group

    def get_group(self):
        return self.group

    def size(self):
        return self.group.size()


@contextlib.contextmanager
def spinning(number):
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()


class Comparison:
    def __init__(self, job, alone, options):
        self.job, self.alone, self.options = job, Mesh(alone), options

    def experts_of(self, dtype):
        config = Qwen3MoeConfig(num_experts=EXPERTS // self.job.ranks, hidden_size=self.options.model,
                                moe_intermediate_size=WIDTH)
        config._experts_implementation = "grouped_mm"
        experts = Qwen3MoeExperts(config)
        experts._is_expert_parallel = True
        generator = torch.Generator().manual_seed(self.job.rank)
        for parameter in experts.parameters():
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
        return experts.to(dtype)

    def routed(self, dtype, load):
        count, generator = self.options.tokens, torch.Generator().manual_seed(100 + self.job.rank)
        tokens = torch.randn(count, self.options.model, generator=generator).to(dtype)
        logits = torch.randn(count, EXPERTS, generator=generator)
        if load == "skewed":
            logits -= torch.arange(1.0, EXPERTS + 1).log()
        weights, indices = torch.softmax(logits, -1).topk(CHOICES, -1)
        return tokens, indices, (weights / weights.sum(-1, keepdim=True)).to(dtype)

    def made(self, name, experts):
        if name in ("gloo", "moeccl"):
            return AllToAllEP(experts, Mesh(self.job.backends[name]), self.alone)
        layer = MoecclEP(experts, Mesh(self.job.moeccl), self.alone)
        layer.wire = torch.float8_e4m3fn if name == "float8" else None
        return layer

    def times(self, dtype_name, load):
        """Of each turn, by name."""
        dtype = DTYPES[dtype_name]
        experts = self.experts_of(dtype)
        models = {name: self.made(name, experts) for name in self.options.by}
        tokens, indices, weights = self.routed(dtype, load)

        def step(name):
            experts.zero_grad()
            source = tokens.clone().requires_grad_()
            output = models[name](source, indices, weights)
            output.square().sum().backward()
            return output.detach(), source.grad

        results = {name: step(name) for name in models}
        for name, result in results.items():
            for ours, theirs in zip(result, results[self.options.by[0]]):
                off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
                if off > BOUNDS["float8" if "float8" in models else dtype_name]:
                    raise SystemExit(f"rank {self.job.rank}: {dtype_name}, {load}: {name} is off by {off} of the largest")
        turns = self.options.turns
        return self.job.turns({name: lambda name=name: step(name) for name in models}, least=turns, most=turns)


def line(what, result):
    cells = [what]
    for name, each in result.items():
        if name != "repetitions":
            cells.append(f"{each['ms']:.2f}")
            if "ratio" in each:
                low, middle, high = each["ratio"]
                cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return "| " + " | ".join(cells) + " |"


def chosen(known):
    def parse(text):
        names = text.split(",")
        wrong = [each for each in names if each not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
        return names
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spin", type=int, default=0, metavar="PROCESSES", help="that compute beside the job")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=256, help="of each rank")
    parser.add_argument("--model", type=int, default=2048, metavar="ELEMENTS", help="of a token")
    parser.add_argument("--by", type=chosen(MODELS), default=["gloo", "moeccl", "layer"], metavar="NAME,...")
    parser.add_argument("--dtypes", type=chosen(DTYPES), default=list(DTYPES), metavar="NAME,...")
    parser.add_argument("--loads", type=chosen(("even", "skewed")), default=["even", "skewed"], metavar="NAME,...")
    parser.add_argument("--json", action="store_true", help="a line for each row instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(0)
    alone, _ = dist.new_subgroups(1, backend="gloo")
    comparison = Comparison(job, alone, options)

    def say(*lines):
        if job.rank == 0:
            print(*lines, sep="\n", flush=True)

    first, *others = options.by
    with spinning(options.spin if job.rank == 0 else 0):
        dist.barrier(group=job.moeccl)
        if not options.json:
            columns = [f"{MODELS[first]}, ms", *(f"{MODELS[each]}, ms | times faster (quartiles)" for each in others)]
            say(f"| layer, forward and backward | {' | '.join(columns)} |", "|---" * (2 + 2 * len(others)) + "|")
        for dtype in options.dtypes:
            for load in options.loads:
                result = summary(comparison.times(dtype, load), first)
                say(json.dumps({"dtype": dtype, "load": load, **result}) if options.json else line(f"{dtype}, {load}", result))
    dist.barrier(group=job.moeccl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
