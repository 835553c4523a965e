"""What trainers do with the gradients of a layer's experts, against one process that has all experts.

    torchrun --nproc-per-node 4 tests/torch/gradients.py [CHECK...]
"""

import itertools
import math

import torch
import torch.distributed as dist
from exchanges import exchanges
from expert_models import EMBEDDING, EXPERTS, Expert, Model, Stack, Whole, local_experts, norm, tokens_of
from harness import check, main, raises
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import moeccl.torch

# Layers share experts, or hold replicas of them; have the same tokens; have shards of experts.
GRIDS = ({}, {"ep_size": 2}, {"mp_size": 2}, {"ep_size": 2, "esp_size": 2}, {"ep_size": 1, "esp_size": 2, "mp_size": 2})


def loss_of(model, batch, step):
    tokens = tokens_of(batch, step)
    return 30 * (model(tokens) - tokens.sin()).square().mean()


def whole_step(model, batches, step):
    model.zero_grad()
    for batch in range(batches):
        (loss_of(model, batch, step) / batches).backward()


def equal_on_all(tensor, what):
    said = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(said, tensor)
    assert all(torch.equal(each, said[0]) for each in said), f"{what} differs: {said}"


def trained(options, norm_type, foreach=None, **others):
    """Clipped training beside one process: norms and parameters of 20 steps."""
    experts = torch.nn.ModuleList(local_experts(options, Expert))
    model = Model(experts, **options, **others)
    parallel = DistributedDataParallel(moeccl.torch.exclude_experts(model))
    whole = Whole(torch.nn.ModuleList(Expert(each) for each in range(EXPERTS)))
    ours, theirs = (torch.optim.Adam(each.parameters(), 1e-2) for each in (parallel, whole))
    mp = options.get("mp_size", 1)
    for step in range(20):
        ours.zero_grad()
        loss_of(parallel, RANK // mp, step).backward()
        total = moeccl.torch.get_total_norm([each.grad for each in parallel.parameters() if each.grad is not None], norm_type)
        clipped = moeccl.torch.clip_grad_norm_(parallel.parameters(), 1.0, norm_type, foreach=foreach)
        whole_step(whole, WORLD // mp, step)
        wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0, norm_type)
        assert wanted > 1.0, "nothing was clipped"
        assert torch.equal(total, clipped) and math.isclose(clipped, wanted, rel_tol=1e-9), (options, clipped, wanted)
        equal_on_all(clipped, "the norm")
        ours.step()
        theirs.step()
        equal_on_all(model.gate.weight.detach(), "the gate")
    assert torch.allclose(model.gate.weight, whole.gate.weight, rtol=1e-7, atol=1e-9), options


@check
def norms_of_all_experts():
    for options in GRIDS:
        trained(options, 2.0)
        trained(options, 2.0, chunks=3)
    for norm_type in (1.0, 2.5, math.inf):
        trained({"ep_size": 2}, norm_type)
    trained({}, 2.0, foreach=False)
    trained({}, 2.0, foreach=True)


@check
def norms_that_are_not_finite():
    model = Model(torch.nn.ModuleList(local_experts({}, Expert)))
    loss_of(model, RANK, 0).backward()
    if RANK == WORLD - 1:
        model.layer.experts[0].first.grad[0, 0] = math.inf
    before = model.gate.weight.grad.clone()
    raises(lambda: moeccl.torch.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True), "norm", "inf")
    assert torch.equal(before, model.gate.weight.grad)
    for norm_type in (2.0, math.inf):
        assert moeccl.torch.get_total_norm(model.parameters()).isfinite()  # of the parameters
        assert moeccl.torch.clip_grad_norm_(model, 1.0, norm_type) in (math.inf,) or norm_type == math.inf
    # No gradients at all, on any rank.
    model.zero_grad()
    assert moeccl.torch.clip_grad_norm_(model.parameters(), 1.0) == 0


@check
def norms_in_16_bits():
    """Added in float32, as nothing in 16 bits could be."""
    weight = torch.nn.Parameter(torch.zeros(100, 100, dtype=torch.bfloat16))
    expert = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    moeccl_layer = moeccl.torch.MoE(torch.nn.ModuleList([expert]))
    weight.grad, expert.weight.grad = torch.ones_like(weight), torch.ones_like(expert.weight)
    total = moeccl.torch.get_total_norm([weight.grad, expert.weight.grad])
    assert math.isclose(total, math.sqrt(10000 + 16 * WORLD), rel_tol=1e-6), total
    assert moeccl_layer.num_experts == WORLD


@check
def parameters_that_experts_share():
    for options in ({}, {"ep_size": 2}, {"ep_size": 2, "esp_size": 2}, {"ep_size": 2, "chunks": 3}):
        # In a list, told by that several experts have it; one that each rank brings its own of is made the first rank's.
        shared, whole_norm = norm(RANK), norm()
        experts = torch.nn.ModuleList(local_experts(options, lambda *place: Expert(*place, norm=shared)))
        dims = {"*.norm.*": None}
        compare_shared(Model(experts, **options, **({} if len(experts) > 1 else {"expert_dims": dims})),
                       Whole(torch.nn.ModuleList(Expert(each, norm=whole_norm) for each in range(EXPERTS))), options,
                       lambda experts: next(iter(experts)).norm.weight)
    # In one module; nothing tells whose it is.
    adapter = torch.nn.Parameter(torch.full((EMBEDDING, EMBEDDING), RANK / 10, dtype=torch.float64))
    zero = torch.nn.Parameter(torch.zeros(EMBEDDING, EMBEDDING, dtype=torch.float64))
    for options in ({}, {"ep_size": 2}):
        local = EXPERTS // options.get("ep_size", WORLD)
        first = RANK % options.get("ep_size", WORLD) * local
        experts = Stack(range(first, first + local), norm(RANK), torch.nn.Parameter(adapter.detach().clone()))
        raises(lambda: Model(experts, **options), "adapter", "expert_dims")
        model = Model(experts, expert_dims={"adapter": None, "norm.*": None}, **options)
        assert experts.adapter.abs().max() == 0 and (experts.norm.weight == 1).all(), "they are the first rank's"
        compare_shared(model, Whole(Stack(range(EXPERTS), norm(), torch.nn.Parameter(zero.detach().clone()))), options,
                       lambda experts: experts.adapter)
    raises(lambda: Model(experts, expert_dims={"other": 0}, **options), "other", "adapter")
    listed = torch.nn.ModuleList(local_experts({}, Expert))
    raises(lambda: Model(listed, expert_dims={"*.first": 1}), "first", "one expert of a list")
    raises(lambda: Model(experts, expert_dims={"adapter": 2, "norm.*": None}, **options), "adapter", "2")


def compare_shared(model, whole, options, of):
    parallel = DistributedDataParallel(moeccl.torch.exclude_experts(model))
    ours, theirs = (torch.optim.SGD(each.parameters(), 1e-2) for each in (parallel, whole))
    for step in range(10):
        for place, accumulated in enumerate((False, True)):  # a second pass adds to what the first one averaged
            if not accumulated:
                ours.zero_grad()
                theirs.zero_grad()
            loss_of(parallel, RANK, 2 * step + place).backward()
            for batch in range(WORLD):
                (loss_of(whole, batch, 2 * step + place) / WORLD).backward()
        ours.step()
        theirs.step()
    mine, wanted = of(model.layer.experts), of(whole.experts)
    equal_on_all(mine.detach(), f"what experts share, {options}")
    assert torch.allclose(mine, wanted, rtol=1e-9, atol=1e-11), (options, (mine - wanted).abs().max())


@check
def backward_to_some_tensors():
    """torch.autograd.grad and backward(inputs=) leave all else alone, and give what is right or nothing."""
    for options in ({}, {"ep_size": 2}, {"chunks": 3}, {"chunks": 3, "ep_size": 2}):
        model = Model(torch.nn.ModuleList(local_experts(options, Expert)), **options)
        experts = list(model.layer.experts.parameters())
        replicas = model.layer.grid.replicas > 1
        tokens = tokens_of(RANK, 0).requires_grad_()
        loss = model(tokens).square().mean()
        (wanted,) = torch.autograd.grad(loss, tokens, retain_graph=True)
        assert all(each.grad is None for each in model.parameters()) and tokens.grad is None
        loss.backward(inputs=[tokens], retain_graph=True)
        assert torch.equal(tokens.grad, wanted) and all(each.grad is None for each in model.parameters())
        if replicas:
            raises(lambda: torch.autograd.grad(loss, experts, retain_graph=True), "0.first" if RANK % 2 == 0 else "4.first",
                   "replicas", "backward()")
        else:
            returned = torch.autograd.grad(loss, experts, retain_graph=True)
        loss.backward(inputs=experts[:2], retain_graph=True)
        some = [each.grad.clone() for each in experts[:2]]
        assert all(each.grad is None for each in [*experts[2:], model.gate.weight])
        model.zero_grad()
        loss.backward()
        assert all(torch.equal(*pair) for pair in zip(some, (each.grad for each in experts)))
        if not replicas:
            assert all(torch.equal(given, each.grad) for given, each in zip(returned, experts))


class Stacked(torch.nn.Module):
    """Experts in one parameter. Without rows they do nothing, and nothing connects them to what they return."""

    def __init__(self, numbers):
        super().__init__()
        self.first = torch.nn.Parameter(torch.stack([Expert(each).first.detach() for each in numbers]))
        self.second = torch.nn.Parameter(torch.stack([Expert(each).second.detach() for each in numbers]))

    def forward(self, rows, begins):
        if not len(rows):
            return torch.zeros_like(rows)
        parts = [torch.tanh(rows[begin:end] @ first) @ second
                 for first, second, begin, end in zip(self.first, self.second, begins, begins[1:])]
        return torch.cat(parts)


class Listed(torch.nn.Module):
    """The same, each with parameters of its own."""

    def __init__(self, numbers):
        super().__init__()
        self.each = torch.nn.ModuleList(Expert(each) for each in numbers)

    def forward(self, rows, begins):
        parts = [expert(rows[begin:end]) for expert, begin, end in zip(self.each, begins, begins[1:]) if end > begin]
        return torch.cat(parts) if parts else torch.zeros_like(rows)


# The experts that 20 tokens choose: those of the first ranks have no rows, all the time or but for the first tokens. Or all
# rows are one expert's.
ROUTINGS = {"none": lambda place: EXPERTS // 2 + place % (EXPERTS // 2),
            "some": lambda place: place if place < 3 else EXPERTS // 2 + place % (EXPERTS // 2), "one": lambda place: EXPERTS - 1}


def skewed(make, routing, options, dtype):
    """A layer with experts without rows, and a function that calls it: the loss and the tokens."""
    local = EXPERTS // options.get("ep_size", WORLD)
    first = RANK % options.get("ep_size", WORLD) * local
    options = dict(options)
    again = options.pop("again", False)
    if options.get("shared_experts"):
        options["shared_experts"] = Expert(1000)
    layer = moeccl.torch.MoE(make(range(first, first + local)), num_experts=EXPERTS, **options).to(dtype)
    indices = torch.tensor([[ROUTINGS[routing](place)] for place in range(20)])

    def call():
        tokens = tokens_of(RANK // options.get("mp_size", 1), 0).to(dtype).requires_grad_()
        given = tokens, indices, torch.ones(20, 1, dtype=dtype)
        output = checkpoint(layer, *given, use_reentrant=False) if again else layer(*given)
        return output.square().mean(), tokens

    return layer, call


SKEWED = [{}, {"capacity_factor": 2.0}, {"chunks": 3}, {"chunks": 3, "capacity_factor": 2.0}, {"shared_experts": True},
          {"chunks": 2, "shared_experts": True}, {"tokens": 20, "chunks": 2}, {"mp_size": 2}, {"ep_size": 2},
          {"ep_size": 2, "chunks": 3}, {"again": True}, {"chunks": 3, "again": True}]


@check
def gradients_of_experts_without_rows():
    """All ranks go through the backward pass, whatever gradients are asked for. Experts without rows get zeros."""
    kinds = (Stacked, torch.float32), (Listed, torch.float64)
    for (make, dtype), routing, options in itertools.product(kinds, ROUTINGS, SKEWED):
        what = f"rank {RANK}: {make.__name__}, {routing}, {options}, {dtype}"
        layer, call = skewed(make, routing, options, dtype)
        experts = list(layer.experts.parameters())
        call()[0].backward()
        wanted = [each.grad.clone() for each in experts]
        assert routing != "none" or RANK > 0 or options.get("ep_size") or not any(each.any() for each in wanted), what
        for some in (experts, experts[-1:]):
            layer.zero_grad()
            call()[0].backward(inputs=some)
            for each, gradient in zip(experts, wanted):
                if any(each is other for other in some):
                    assert torch.equal(each.grad, gradient), what
                else:
                    assert each.grad is None, what
        layer.zero_grad()
        for unused in (False, True):
            loss, tokens = call()
            if layer.grid.replicas > 1:
                raises(lambda: torch.autograd.grad(loss, experts, allow_unused=unused), "replicas", "backward()")
                continue
            *given, of_tokens = torch.autograd.grad(loss, [*experts, tokens], allow_unused=unused)
            assert all(torch.equal(*pair) for pair in zip(given, wanted)) and of_tokens.any(), what
            loss, _ = call()
            given = torch.autograd.grad(loss, experts, allow_unused=unused)
            assert all(torch.equal(*pair) for pair in zip(given, wanted)), what
            assert all(each.grad is None for each in experts), what


@check
def hooks_of_experts_without_rows():
    """They are called on all ranks, as often as on those with rows, with tensors."""
    for make, options in itertools.product((Stacked, Listed), ({}, {"chunks": 3})):
        layer, call = skewed(make, "none", options, torch.float64)
        seen, experts = [], list(layer.experts.parameters())
        for each in experts:
            each.register_hook(lambda gradient: seen.append(gradient.shape))
            each.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.shape))
        call()[0].backward()
        assert sorted(seen) == sorted(2 * [each.shape for each in experts]), (RANK, seen)


@check
def gradients_of_gradients():
    """They are refused, with nothing sent, also where the loss is linear in the layer's output."""
    for options, power in itertools.product(({}, {"chunks": 3}, {"shared_experts": Expert(1000)}), (1, 2)):
        model = Model(torch.nn.ModuleList(local_experts({}, Expert)), **options)
        tokens = tokens_of(RANK, 0).requires_grad_()
        asked = [tokens, model.gate.weight]
        wanted = torch.autograd.grad(model(tokens).pow(power).sum(), asked)
        loss = model(tokens).pow(power).sum()
        given = torch.autograd.grad(loss, asked, create_graph=True)
        assert all(torch.allclose(*pair) for pair in zip(given, wanted)), options
        for each in given:
            twice = each.square().sum() + loss
            with exchanges() as found:
                raises(lambda: twice.backward(retain_graph=True), "gradients of gradients", "create_graph=True")
            assert not found, found
        model.zero_grad()
        loss.backward()
        assert torch.allclose(model.gate.weight.grad, wanted[1]), options


@check
def hooks_that_would_see_too_little():
    for options in ({}, {"ep_size": 2}):
        model = Model(torch.nn.ModuleList(local_experts(options, Expert)), **options)
        seen = []
        first = model.layer.experts[0].first
        first.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
        if model.layer.grid.replicas > 1:
            raises(lambda: loss_of(model, RANK, 0), "first", "register_post_accumulate_grad_hook")
            with torch.no_grad():
                loss_of(model, RANK, 0)
            with model.layer.no_sync():
                loss_of(model, RANK, 0).backward()
        else:
            loss_of(model, RANK, 0).backward()
            assert torch.equal(seen[0], first.grad)


@check
def small_gradients_in_float16():
    """Of 1e-6 the numbers of 16 bits lose 6 % by themselves, and an eighth of it would lose half."""
    expert = torch.nn.Linear(EMBEDDING, EMBEDDING, bias=False, dtype=torch.float16)
    torch.nn.init.eye_(expert.weight)
    for gradients, times in (("mean", 1), ("sum", WORLD)):
        layer = moeccl.torch.MoE(torch.nn.ModuleList([expert]), gradients=gradients)
        tokens = tokens_of(0, 1).to(torch.float16).requires_grad_()
        expert.weight.grad = None
        output = layer(tokens, torch.full((20, 1), (RANK + 1) % WORLD), torch.ones(20, 1, dtype=torch.float16))
        output.backward(torch.full_like(output, 1e-6))
        assert ((tokens.grad.double() - 1e-6).abs() <= 0.06e-6).all(), tokens.grad
        # Larger ones, of one rank's tokens at each expert, divided by the number of ranks.
        expert.weight.grad = None
        layer(tokens, torch.full((20, 1), (RANK + 1) % WORLD), torch.ones(20, 1, dtype=torch.float16)).sum().backward()
        wanted = tokens.detach().double().sum(0).expand(EMBEDDING, EMBEDDING) * times / WORLD
        assert torch.allclose(expert.weight.grad.double(), wanted, rtol=2e-2, atol=2e-2), (expert.weight.grad, wanted)


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    main(start)
