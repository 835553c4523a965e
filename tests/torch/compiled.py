"""Layers and routes under torch.compile(fullgraph=True) and torch.export equal eager ones.

    torchrun --nproc-per-node 4 tests/torch/compiled.py [CHECK...]
"""

import copy
import os
import tempfile

import torch
import torch.distributed as dist
from harness import check, main, raises

import moeccl.torch

EXPERTS, HIDDEN, CHOICES = 8, 16, 2


def start():
    global RANK, WORLD
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


def seeded(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(seed, inside, outside):
    made = torch.nn.Linear(inside, outside)
    with torch.no_grad():
        made.weight.copy_(seeded(outside, inside, seed=seed) / 4)
        made.bias.copy_(seeded(outside, seed=seed + 1) / 4)
    return made


def own_experts():
    local = EXPERTS // WORLD
    return range(RANK * local, (RANK + 1) * local)


class Together(torch.nn.Module):
    """Experts whose rows are computed together, by where each one's begin."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.stack([seeded(HIDDEN, HIDDEN, seed=each) / 4 for each in own_experts()]))

    def forward(self, rows, begins):
        return torch.cat([rows[begin:end] @ one for begin, end, one in zip(begins, begins[1:], self.weight)]).tanh()


def layer(together, **options):
    experts = Together() if together else torch.nn.ModuleList(
        torch.nn.Sequential(linear(10 * each, HIDDEN, 24), torch.nn.GELU(), linear(10 * each + 5, 24, HIDDEN))
        for each in own_experts())
    return moeccl.torch.MoE(experts, linear(99 + together, HIDDEN, EXPERTS), top_k=CHOICES, num_experts=EXPERTS, **options)


class Block(torch.nn.Module):
    def __init__(self, together, **options):
        super().__init__()
        self.before, self.layer = linear(7, HIDDEN, HIDDEN), layer(together, **options)

    def forward(self, tokens):
        return tokens + self.layer(torch.nn.functional.silu(self.before(tokens)))


class Routed(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=weights)
        self.gate = linear(50, HIDDEN, EXPERTS)
        self.experts = torch.nn.Parameter(torch.stack([seeded(HIDDEN, HIDDEN, seed=each) / 4 for each in own_experts()]))

    def forward(self, tokens):
        weights, indices = self.gate(tokens).softmax(-1).topk(CHOICES, -1)
        rows, handle = self.route.dispatch(tokens, indices, weights if self.route.weights else None)
        results = torch.bmm(rows[:, None], self.experts[handle.experts]).squeeze(1)
        if handle.row_weights is not None:
            results = results * handle.row_weights[:, None]
        output = self.route.combine(results, handle)
        again, _ = self.route.dispatch(output, handle=handle)
        return output + self.route.combine(again * 0.5, handle)


def tokens_of(step, sharing=1):
    """Any number of tokens, other ones on each so many ranks; none at one step."""
    batch = RANK // sharing
    count = 0 if step == 3 and batch == 0 else 5 + (3 * batch + 7 * step) % 11
    return seeded(count, HIDDEN, seed=1000 * step + batch)


def near(got, wanted, what, most):
    assert got.shape == wanted.shape, f"{what}: {got.shape} instead of {wanted.shape}"
    off = (got - wanted).abs().max().item() if got.numel() else 0
    assert off <= most * (1 + (wanted.abs().max().item() if wanted.numel() else 0)), f"{what} is off by {off}"


def passed(model, run, step, sharing=1):
    tokens = tokens_of(step, sharing).requires_grad_()
    model.zero_grad()
    output = run(tokens)
    (output * seeded(*output.shape, seed=step)).sum().backward()
    return output.detach(), tokens.grad, {name: each.grad.clone() for name, each in model.named_parameters()
                                            if each.grad is not None}


def compare(model, what, most=2e-6, backends=("eager", "aot_eager"), steps=5, sharing=1):
    for backend in backends:
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for step in range(steps):
            wanted, got = passed(model, model, step, sharing), passed(model, compiled, step, sharing)
            near(got[0], wanted[0], f"{what}, {backend}, step {step}: the output", most)
            near(got[1], wanted[1], f"{what}, {backend}, step {step}: the gradient of tokens", most)
            assert got[2].keys() == wanted[2].keys(), (got[2].keys(), wanted[2].keys())
            for name, each in wanted[2].items():
                near(got[2][name], each, f"{what}, {backend}, step {step}: the gradient of {name}", most)


@check
def two_layers_in_one_graph():
    compare(torch.nn.Sequential(Block(False), Block(True)), "two layers")


@check
def layers_with_replicas_and_capacity():
    if WORLD % 2 == 0:
        compare(torch.nn.Sequential(Block(False, mp_size=2, capacity_factor=1.0, schedule="S1"), Block(True)),
                "ranks with the same tokens", backends=["aot_eager"], sharing=2)
        experts = torch.nn.ModuleList(linear(each, HIDDEN, HIDDEN) for each in range(EXPERTS * 2 // WORLD))
        model = moeccl.torch.MoE(experts, linear(3, HIDDEN, EXPERTS), top_k=CHOICES, ep_size=WORLD // 2)
        compare(model, "replicas", backends=["aot_eager"])
    compare(Block(False, capacity_factor=1.0), "a capacity", backends=["aot_eager"])


@check
def chunks_and_shared_experts():
    """A graph takes one chunk, and shared experts behind the exchange."""
    shared = torch.nn.Sequential(linear(31, HIDDEN, 20), torch.nn.SiLU(), linear(32, 20, HIDDEN))
    model = torch.nn.Sequential(Block(False, chunks=3, shared_experts=shared), Block(True, chunks=2, capacity_factor=1.0))
    compare(model, "chunks and shared experts")


@check
def routes_in_a_graph():
    for weights in ("combine", "rows", None):
        compare(Routed(weights), f"weights={weights!r}")


@check
def by_inductor():
    """Which reuses memory as it likes."""
    compare(torch.nn.Sequential(Block(False), Block(True)), "two layers", backends=["inductor"], steps=4)
    compare(Routed("rows"), "a route", backends=["inductor"], steps=4)


@check
def bfloat16_tokens():
    model = torch.nn.Sequential(Block(False), Block(True)).bfloat16()

    def run(tokens, model=model):
        return model(tokens.bfloat16()).float()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for step in range(3):
        wanted, got = passed(model, run, step), passed(model, compiled, step)
        near(got[0], wanted[0], "the output", 2e-2)
        near(got[1], wanted[1], "the gradient", 2e-2)


@check
def exported_models():
    for name, model in (("two layers", torch.nn.Sequential(Block(False), Block(True))), ("a route", Routed("combine"))):
        count = torch.export.Dim("count", min=2)
        exported = torch.export.export(model, (seeded(9, HIDDEN, seed=1),), dynamic_shapes=({0: count},))
        called = [each.target for each in exported.graph.nodes if str(each.target).startswith("moeccl.")]
        assert len(called) >= 4, called
        with torch.no_grad():
            for step in range(3):
                tokens = tokens_of(step)
                near(exported.module()(tokens), model(tokens), f"{name}, step {step}", 2e-6)


@check
def one_ranks_error_reaches_all_ranks():
    one = layer(False)

    def run(tokens, indices, weights):
        return one(tokens * 2.0, indices, weights)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    indices = torch.arange(CHOICES).expand(6, -1).contiguous() + RANK
    given = seeded(6, HIDDEN, seed=RANK), indices % EXPERTS, torch.full((6, CHOICES), 0.5)
    near(compiled(*given), run(*given), "the output", 2e-6)
    wrong = given[0], indices + EXPERTS * (RANK == 1), given[2]
    text = raises(lambda: compiled(*wrong), f"to {EXPERTS - 1}")
    assert RANK == 1 or "rank 1 of the layer's ranks" in text, text
    near(compiled(*given), run(*given), "the output afterwards", 2e-6)


@check
def what_breaks_the_graph_is_told():
    """Parameters that experts share count otherwise than those of one expert: such layers run beside graphs."""
    norm = torch.nn.LayerNorm(HIDDEN)
    experts = torch.nn.ModuleList(torch.nn.Sequential(norm, linear(each, HIDDEN, HIDDEN)) for each in own_experts())
    one = moeccl.torch.MoE(experts, linear(3, HIDDEN, EXPERTS), top_k=CHOICES)
    if len(experts) > 1:
        raises(lambda: torch.compile(one, fullgraph=True, backend="eager")(tokens_of(0)), "_guarded")
    torch._dynamo.reset()
    model = torch.compile(one, backend="aot_eager")
    for step in range(2):
        wanted, got = passed(one, one, step), passed(one, model, step)
        near(got[0], wanted[0], "the output", 2e-6)
        near(got[1], wanted[1], "the gradient", 2e-6)


class Skipping(Together):
    """Without rows they do nothing, and nothing connects their weight to what they return."""

    def forward(self, rows, begins):
        parts = [rows[begin:end] @ one for begin, end, one in zip(begins, begins[1:], self.weight) if end > begin]
        return torch.cat(parts).tanh() if parts else torch.zeros_like(rows)


@check
def experts_that_break_the_graph_and_have_no_rows():
    """All ranks go through the backward pass, whatever gradients are asked for."""
    model = moeccl.torch.MoE(Skipping(), num_experts=EXPERTS)
    weight, weights = model.experts.weight, torch.ones(EXPERTS, 1)
    spread, last = torch.arange(EXPERTS)[:, None], torch.full((EXPERTS, 1), EXPERTS - 1)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend)
        for step, indices in enumerate((last, spread, last)):
            tokens = seeded(EXPERTS, HIDDEN, seed=10 * step + RANK).requires_grad_()
            (wanted,) = torch.autograd.grad(model(tokens, indices, weights).square().sum(), [weight])
            (given,) = torch.autograd.grad(compiled(tokens, indices, weights).square().sum(), [weight])
            near(given, wanted, f"{backend}, step {step}: the gradient of weights", 2e-6)
            weight.grad = None
            compiled(tokens, indices, weights).square().sum().backward(inputs=[weight])
            near(weight.grad, wanted, f"{backend}, step {step}: the gradient of weights by backward()", 2e-6)


if __name__ == "__main__":
    # Each rank compiles for itself, in a folder of its own.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.mkdtemp(), os.environ.get("RANK", "0"))
    main(start)
