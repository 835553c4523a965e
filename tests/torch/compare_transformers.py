#!/usr/bin/env python3
"""Expert parallelism of transformers: its own exchange on Gloo and on moeccl, and ep_implementation="moeccl".

    perf/moeccl-lab run --no-prefix -- VENV/bin/python tests/torch/compare_transformers.py [--spin 2] [--turns 15]

One layer of 64 experts, top-8, of 2048 elements, 256 tokens per rank, forward and backward; experts are narrow, so what is
compared is the exchange. All live in one job and take turns; see compare.py. --spin: so many processes compute beside
the job.
"""
import argparse
import contextlib
import subprocess
import sys

import torch
import torch.distributed as dist
from compare import Job, line, summary
from transformers import Qwen3MoeConfig
from transformers.distributed.expert_parallel import AllToAllEP
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from moeccl.torch.transformers_ep import MoecclEP

EXPERTS, CHOICES, MODEL, WIDTH, TOKENS = 64, 8, 2048, 16, 256


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


def experts_of(job, dtype):
    config = Qwen3MoeConfig(num_experts=EXPERTS // job.ranks, hidden_size=MODEL, moe_intermediate_size=WIDTH)
    config._experts_implementation = "grouped_mm"
    experts = Qwen3MoeExperts(config)
    experts._is_expert_parallel = True
    generator = torch.Generator().manual_seed(job.rank)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    return experts.to(dtype)


def routed(job, dtype, skewed):
    generator = torch.Generator().manual_seed(100 + job.rank)
    tokens = torch.randn(TOKENS, MODEL, generator=generator).to(dtype)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator)
    if skewed:
        logits -= torch.arange(1.0, EXPERTS + 1).log()
    weights, indices = torch.softmax(logits, -1).topk(CHOICES, -1)
    return tokens, indices, (weights / weights.sum(-1, keepdim=True)).to(dtype)


def compared(job, dtype, skewed, turns):
    experts, alone = experts_of(job, dtype), Mesh(ALONE)
    models = {"gloo": AllToAllEP(experts, Mesh(job.gloo), alone), "moeccl": AllToAllEP(experts, Mesh(job.moeccl), alone),
              "layer": MoecclEP(experts, Mesh(job.moeccl), alone)}
    tokens, indices, weights = routed(job, dtype, skewed)

    def step(name):
        experts.zero_grad()
        source = tokens.clone().requires_grad_()
        output = models[name](source, indices, weights)
        output.square().sum().backward()
        return output.detach(), source.grad

    results = {name: step(name) for name in models}
    for name, result in results.items():
        for ours, theirs in zip(result, results["gloo"]):
            off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            if off > (1e-5 if dtype == torch.float32 else 3e-2):
                raise SystemExit(f"rank {job.rank}: {dtype}, skewed {skewed}: {name} is off by {off} of the largest")
    return summary(job.turns({name: lambda name=name: step(name) for name in models}, least=turns, most=turns))


def main():
    global ALONE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spin", type=int, default=0, metavar="PROCESSES")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(0)
    ALONE, _ = dist.new_subgroups(1, backend="gloo")

    def say(*lines):
        if job.rank == 0:
            print(*lines, sep="\n", flush=True)

    with spinning(options.spin if job.rank == 0 else 0):
        dist.barrier(group=job.moeccl)
        say("| layer, forward and backward | AllToAllEP on Gloo, ms | AllToAllEP on moeccl, ms | times faster (quartiles) | "
            'ep_implementation="moeccl", ms | times faster (quartiles) |', "|---|---|---|---|---|---|")
        for dtype in (torch.float32, torch.bfloat16):
            for skewed in (False, True):
                result = compared(job, dtype, skewed, options.turns)
                say(line(f"{str(dtype).removeprefix('torch.')}, {'skewed' if skewed else 'even'}", result))
    dist.barrier(group=job.moeccl)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
