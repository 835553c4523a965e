"""Small models around a layer whose experts are spread over ranks, and the same in one process."""

import torch
import torch.distributed as dist

import moeccl.torch

EMBEDDING, EXPERTS = 6, 8


class Expert(torch.nn.Module):
    """One shard of an expert; shards add up to the whole."""

    def __init__(self, number, shards=1, shard=0, norm=None):
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        first = torch.randn(EMBEDDING, 4, generator=generator, dtype=torch.float64)
        second = torch.randn(4, EMBEDDING, generator=generator, dtype=torch.float64)
        self.first = torch.nn.Parameter(first.chunk(shards, 1)[shard].clone())
        self.second = torch.nn.Parameter(second.chunk(shards, 0)[shard].clone())
        if norm is not None:
            self.norm = norm

    def forward(self, rows):
        rows = self.norm(rows) if hasattr(self, "norm") else rows
        return torch.tanh(rows @ self.first) @ self.second


class Stack(torch.nn.Module):
    """Experts computed together, whose rows a norm and an adapter of all pass."""

    def __init__(self, numbers, norm, adapter):
        super().__init__()
        whole = [Expert(each) for each in numbers]
        self.first = torch.nn.Parameter(torch.stack([each.first.detach() for each in whole]))
        self.second = torch.nn.Parameter(torch.stack([each.second.detach() for each in whole]))
        self.norm, self.adapter = norm, adapter

    def forward(self, rows, begins):
        rows = self.norm(rows)
        parts = [torch.tanh(rows[begin:end] @ first) @ second
                 for first, second, begin, end in zip(self.first, self.second, begins, begins[1:])]
        return torch.cat(parts) @ (torch.eye(EMBEDDING, dtype=torch.float64) + self.adapter)


def norm(salt=0):
    made = torch.nn.LayerNorm(EMBEDDING, dtype=torch.float64)
    with torch.no_grad():
        made.weight += salt / 10
    return made


def local_experts(grid_options, make):
    """This rank's, by make(number, shards, shard)."""
    esp = grid_options.get("esp_size", 1)
    ep = grid_options.get("ep_size") or dist.get_world_size() // esp
    at = dist.get_rank() % (ep * esp)
    local = EXPERTS // ep
    return [make(each, esp, at % esp) for each in range(at // esp * local, (at // esp + 1) * local)]


def tokens_of(batch, step):
    generator = torch.Generator().manual_seed(100 * step + batch)
    return torch.randn(20, EMBEDDING, generator=generator, dtype=torch.float64)


class Model(torch.nn.Module):
    def __init__(self, experts, **options):
        super().__init__()
        generator = torch.Generator().manual_seed(77)
        self.gate = torch.nn.Linear(EMBEDDING, EXPERTS, bias=False, dtype=torch.float64)
        self.gate.weight.data = torch.randn(EXPERTS, EMBEDDING, generator=generator, dtype=torch.float64)
        self.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
        self.layer = moeccl.torch.MoE(experts, self.gate, top_k=2, num_experts=EXPERTS, **options)

    def forward(self, tokens):
        return self.layer(tokens)


class Whole(torch.nn.Module):
    """The same in one process, with all experts."""

    def __init__(self, experts):
        super().__init__()
        self.gate = torch.nn.Linear(EMBEDDING, EXPERTS, bias=False, dtype=torch.float64)
        generator = torch.Generator().manual_seed(77)
        self.gate.weight.data = torch.randn(EXPERTS, EMBEDDING, generator=generator, dtype=torch.float64)
        self.experts = experts

    def forward(self, tokens):
        weights, indices = torch.softmax(self.gate(tokens), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        order = indices.flatten().argsort(stable=True)
        begins = [0, *torch.bincount(indices.flatten(), minlength=EXPERTS).cumsum(0).tolist()]
        rows = tokens[order // 2]
        if isinstance(self.experts, torch.nn.ModuleList):
            parts = [each(rows[begin:end]) for each, begin, end in zip(self.experts, begins, begins[1:])]
            results = torch.cat(parts)
        else:
            results = self.experts(rows, begins)
        return torch.zeros_like(tokens).index_add(0, order // 2, weights.flatten()[order, None] * results)
