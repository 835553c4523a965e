"""moeccl.torch.MoE on several ranks against the same layer in one process.

    torchrun --nproc-per-node 4 tests/torch/layers.py [CHECK...]

Every rank runs every check; the first difference ends the job with an error.
"""

import collections
import copy
import gc
import math
import pickle

import torch
import torch.distributed as dist
from exchanges import exchanges
from harness import check, main, raises
from torch.utils.checkpoint import checkpoint

import moeccl.torch
from moeccl import _C

EMBEDDING, HIDDEN = 12, 20


class Expert(torch.nn.Module):
    """One shard of an expert; shards add up to the whole."""

    def __init__(self, number, shards=1, shard=0, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        w1 = torch.randn(EMBEDDING, HIDDEN, generator=generator, dtype=torch.float64) / 3
        w2 = torch.randn(HIDDEN, EMBEDDING, generator=generator, dtype=torch.float64) / 3
        own = slice(shard * HIDDEN // shards, (shard + 1) * HIDDEN // shards)
        self.w1 = torch.nn.Parameter(w1[:, own].to(dtype, copy=True))
        self.w2 = torch.nn.Parameter(w2[own].to(dtype, copy=True))

    def forward(self, rows):
        return torch.nn.functional.gelu(rows @ self.w1) @ self.w2


class Batched(torch.nn.Module):
    """Several experts that take all rows at once; those without rows do nothing."""

    def __init__(self, experts):
        super().__init__()
        self.each = torch.nn.ModuleList(experts)

    def forward(self, rows, begins):
        parts = [expert(rows[begin:end]) for expert, begin, end in zip(self.each, begins, begins[1:]) if end > begin]
        return torch.cat(parts) if parts else torch.zeros_like(rows)


def random(shape, *salt, dtype=torch.float64):
    seed = 0
    for each in salt:
        seed = seed * 1009 + each + 1
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def places(indices, experts, factor, groups, unit):
    """Which choices find a place: first choices before second ones, in the order of tokens of a capacity group."""
    tokens, choices = indices.shape
    padded = -(-tokens // unit) * unit
    capacity = min(padded, -(-math.ceil(choices * factor * tokens / experts * (1 - 1e-12)) // unit) * unit)
    kept = torch.zeros_like(indices, dtype=torch.bool)
    for group in range(groups):
        used = [0] * experts
        for choice in range(choices):
            for token in range(group * padded // groups, min(tokens, (group + 1) * padded // groups)):
                expert = indices[token, choice]
                if expert >= 0 and used[expert] < capacity // groups:
                    used[expert] += 1
                    kept[token, choice] = True
    return kept


def one_process(experts, tokens, indices, weights, kept=None):
    """The layer on one batch, choice by choice."""
    output = torch.zeros_like(tokens)
    for number, expert in enumerate(experts):
        for choice in range(indices.shape[1]):
            chosen = indices[:, choice] == number
            if kept is not None:
                chosen = chosen & kept[:, choice]
            at = chosen.nonzero().flatten()
            output = output.index_add(0, at, weights[at, choice, None] * expert(tokens[at]))
    return output


class Case:
    """A layer on this grid, and what must come of it."""

    def __init__(self, experts=8, top_k=2, dtype=torch.float64, tokens=None, batched=False, gate="logits", **options):
        self.dtype, self.top_k, self.number = dtype, top_k, experts
        self.options = options
        mp, esp = options.get("mp_size", 1), options.get("esp_size", 1)
        ep = options.get("ep_size") or WORLD // esp
        self.mp, self.batch, self.batches = mp, RANK // mp, WORLD // mp
        self.counts = tokens or [30] * self.batches
        at = RANK % (ep * esp)
        ep_rank, shard = (at // esp, at % esp) if options.get("order", "esp") == "esp" else (at % ep, at // ep)
        local = experts // ep
        self.shard, self.first = (esp, shard), ep_rank * local
        mine = [Expert(each, esp, shard, dtype) for each in range(self.first, self.first + local)]
        self.whole = [Expert(each) for each in range(experts)]
        self.gate = torch.nn.Linear(EMBEDDING, experts, bias=False, dtype=dtype)
        self.gate.weight.data = random((experts, EMBEDDING), 5, dtype=dtype)
        self.form = gate
        self.layer = moeccl.torch.MoE(Batched(mine) if batched else torch.nn.ModuleList(mine), self.route, top_k=top_k,
                                      num_experts=experts, **options)

    def route(self, tokens):
        logits = self.gate(tokens)
        if self.form == "logits":
            return logits
        weights, indices = torch.softmax(logits, -1).topk(self.top_k, -1)
        indices = indices.to(torch.int32)
        if self.form == "dropped":
            indices = indices.masked_fill((indices + torch.arange(len(tokens))[:, None]) % 3 == 0, -1)
        return {"pair": (indices, weights), "dropped": (weights, indices), "router": (logits, weights, indices)}[
            self.form]

    def tokens(self, batch, salt):
        return random((self.counts[batch], EMBEDDING), batch, salt, dtype=self.dtype).requires_grad_()

    def target(self, batch, salt):
        return random((self.counts[batch], EMBEDDING), batch, salt, 7, dtype=self.dtype)

    def step(self, salt=0, call=None):
        """Output, loss and tokens of this rank."""
        tokens = self.tokens(self.batch, salt)
        output = (call or self.layer)(tokens)
        return output, (output * self.target(self.batch, salt)).sum() / 10, tokens

    def expected(self, batch, salt=0):
        """The same of one process, in float64."""
        tokens = self.tokens(batch, salt).detach().double().requires_grad_()
        gate, self.gate = self.gate, self.gate64
        routing = self.route(tokens)
        self.gate = gate
        if self.form == "logits":
            weights, indices = torch.softmax(routing, -1).topk(self.top_k, -1)
            weights = weights / weights.sum(-1, keepdim=True) if self.top_k > 1 else weights
        elif self.form == "dropped":
            weights, indices = routing
        else:
            indices, weights = routing[:2] if self.form == "pair" else (routing[2], routing[1])
        kept = None
        factor = self.options.get("capacity_factor")
        if factor is not None:
            groups = self.options.get("capacity_groups") or self.mp
            kept = places(indices, self.number, factor, groups, math.lcm(groups, self.mp))
            self.dropped[batch] = int((~kept).sum())
        output = one_process(self.whole, tokens, indices, weights, kept)
        return output, (output * self.target(batch, salt).double()).sum() / 10, tokens

    def compare(self, outputs, tokens, salts=(0,)):
        """Outputs and all gradients, of one step of several passes."""
        self.dropped = [0] * self.batches
        self.gate64 = torch.nn.Linear(EMBEDDING, self.number, bias=False, dtype=torch.float64)
        self.gate64.weight.data = self.gate.weight.data.double()
        gate = torch.zeros_like(self.gate64.weight)
        for expert in self.whole:
            expert.zero_grad()
        for batch in range(self.batches):
            for place, salt in enumerate(salts):
                want, loss, theirs = self.expected(batch, salt)
                if batch == self.batch:
                    # Its own loss alone reaches a rank's tokens and gate.
                    of_tokens, of_gate = torch.autograd.grad(loss, (theirs, self.gate64.weight), retain_graph=True)
                    self.close(outputs[place], want, "output")
                    self.close(tokens[place].grad, of_tokens, "gradient of tokens")
                    gate += of_gate
                (loss / self.batches).backward()
        self.close(self.gate.weight.grad, gate, "gradient of the gate")
        self.compare_experts()

    def compare_experts(self):
        shards, shard = self.shard
        own = slice(shard * HIDDEN // shards, (shard + 1) * HIDDEN // shards)
        modules = self.layer.experts.each if isinstance(self.layer.experts, Batched) else self.layer.experts
        for place, expert in enumerate(modules):
            whole = self.whole[self.first + place]
            for name, cut in (("w1", (slice(None), own)), ("w2", (own,))):
                want = getattr(whole, name).grad
                want = torch.zeros_like(getattr(whole, name)) if want is None else want
                self.close(getattr(expert, name).grad, want[cut], f"gradient of {name} of expert {self.first + place}")

    def close(self, ours, theirs, what):
        assert ours is not None and ours.dtype == self.dtype, f"rank {RANK}: {what}"
        bound = {torch.float64: 1e-11, torch.float32: 2e-4, torch.float16: 0.01, torch.bfloat16: 0.06}[self.dtype]
        theirs = theirs.detach()
        off = (ours.detach().double() - theirs).abs().max().item() if ours.numel() else 0
        size = theirs.abs().max().item() if ours.numel() else 0
        assert ours.shape == theirs.shape and off <= bound * (1 + size), f"rank {RANK}: {what} is off by {off} of {size}"


def run(case, salts=(0,), call=None):
    """All forward passes, then all backward passes, and the comparison."""
    steps = [case.step(salt, call) for salt in salts]
    for _, loss, _ in steps:
        loss.backward()
    case.compare([output for output, _, _ in steps], [tokens for _, _, tokens in steps], salts)
    return case


@check
def every_grid_and_schedule():
    names = set()
    for dtype in (torch.float64, torch.float32):
        for mp, esp in ((1, 1), (1, 2), (2, 1), (2, 2), (WORLD, 1)):
            for factor in (None, 1.0):
                for schedule in ("auto", "baseline", "S1", "S2", "PPMoE"):
                    if (schedule == "baseline" and mp > 1) or (schedule == "S2" and factor is None) \
                            or (schedule == "PPMoE" and mp != WORLD) or (dtype == torch.float32 and schedule != "auto"):
                        continue
                    case = run(Case(dtype=dtype, mp_size=mp, esp_size=esp, schedule=schedule, capacity_factor=factor))
                    used = case.layer._last[1]
                    assert schedule in ("auto", used), used
                    names.add(used)
                    dropped = torch.zeros(case.batches, dtype=torch.int64)
                    dropped[case.batch] = case.layer.dropped()
                    dist.all_reduce(dropped)
                    assert dropped.tolist() == case.dropped, (dropped, case.dropped)
                    assert (sum(case.dropped) > 0) == (factor is not None)
    # Some dropless layers need no schedule.
    assert names >= {"baseline", "S1", "S2", "PPMoE"} and names & {"node", "rank", "flat"}, names


@check
def layers_learn():
    case = Case(learn=True, capacity_factor=1.0)
    for _ in range(40):
        case.step()[1].backward()
    for module in (case.layer, case.gate):
        module.zero_grad()
    run(case)
    text = case.layer.explain()
    assert text.startswith("The last pass went by S") and "runs under" in text and "ms a step measured" in text, text


@check
def gates_and_experts_of_all_kinds():
    for gate in ("logits", "pair", "dropped", "router"):
        for batched in (False, True):
            run(Case(gate=gate, batched=batched, order="ep", esp_size=2))
    run(Case(top_k=1))
    run(Case(experts=WORLD * 3, top_k=5))
    run(Case(gate="dropped", capacity_factor=0.8, mp_size=2, capacity_groups=4, schedule="S1"))
    # A layer without gate.
    tokens = random((5, EMBEDDING), RANK)
    layer = moeccl.torch.MoE(torch.nn.ModuleList([Expert(RANK)]))
    indices, weights = torch.full((5, 1), (RANK + 1) % WORLD), torch.full((5, 1), 0.5, dtype=torch.float64)
    assert torch.allclose(layer(tokens, indices, weights), 0.5 * Expert((RANK + 1) % WORLD)(tokens))


@check
def replicas_are_averaged():
    case = Case(experts=4, ep_size=2)
    assert case.layer.grid.replicas == WORLD // 2
    run(case)
    case = Case(experts=4, ep_size=1, esp_size=2, mp_size=2)
    run(case)
    # Two backward passes add up, averaged once each or once at the end.
    for both in (True, False):
        case = Case(experts=4, ep_size=2)
        steps = [case.step(salt) for salt in (0, 1)]
        if both:
            steps[0][1].backward()
        else:
            with case.layer.no_sync():
                steps[0][1].backward()
        steps[1][1].backward()
        case.compare([each[0] for each in steps], [each[2] for each in steps], (0, 1))
    # Parameters that differed become those of the first replica.
    experts = torch.nn.ModuleList([Expert(100 + RANK)])
    layer = moeccl.torch.MoE(experts, ep_size=1, num_experts=1)
    assert torch.equal(layer.experts[0].w1, Expert(100).w1)
    # The sum of the losses.
    case = Case(experts=4, ep_size=2, gradients="sum")
    _, loss, tokens = case.step()
    loss.backward()
    case.gate64 = case.gate
    for batch in range(case.batches):
        case.expected(batch)[1].backward()
    case.compare_experts()


@check
def empty_and_uneven_ranks():
    for factor in (None, 1.0, 8.0):
        for counts in ([30] * (WORLD - 1) + [0], [7 * rank % 31 for rank in range(WORLD)], [0] * WORLD):
            run(Case(tokens=counts, capacity_factor=factor))
        run(Case(tokens=[(5 * rank) % 17 for rank in range(WORLD // 2)], mp_size=2, capacity_factor=factor))
    # Where the most is known beforehand nothing is said before a pass.
    experts = torch.nn.ModuleList([Expert(RANK)])
    layer = moeccl.torch.MoE(experts, tokens=40)
    for count in (RANK, 40, 0):
        indices, weights = torch.full((count, 1), RANK), torch.ones(count, 1, dtype=torch.float64)
        tokens = random((count, EMBEDDING), RANK)
        assert torch.allclose(layer(tokens, indices, weights), experts[0](tokens))
    assert len(layer._routes) == 1
    dist.barrier()  # the error ends what others are at
    raises(lambda: layer(random((41, EMBEDDING), 0), torch.zeros(41, 1, dtype=torch.int64), torch.ones(41, 1)), "41", "40")
    moeccl.torch.recover()
    # All tokens go to one expert, of the last rank, and it alone is trained. All take part all the same.
    for experts in (torch.nn.ModuleList([Expert(RANK)]), Batched([Expert(RANK)])):
        layer = moeccl.torch.MoE(experts.requires_grad_(RANK == WORLD - 1), num_experts=WORLD)
        tokens = random((50, EMBEDDING), RANK)
        layer(tokens, torch.full((50, 1), WORLD - 1), torch.ones(50, 1, dtype=torch.float64)).sum().backward()
        for each in layer.experts.parameters():
            assert (each.grad is not None and each.grad.abs().sum() > 0) == (RANK == WORLD - 1)
        # Experts without rows have gradients, as in one process.
        layer.experts.requires_grad_().zero_grad()
        layer(tokens, torch.full((50, 1), 0), torch.ones(50, 1, dtype=torch.float64)).sum().backward()
        for each in layer.experts.parameters():
            assert (each.grad.abs().sum() > 0) == (RANK == 0)
    # Nothing is made anew for another number of tokens.
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    for count in range(1000, 1060):
        count += RANK
        layer(random((count, EMBEDDING), 0), torch.zeros(count, 1, dtype=torch.int64), torch.ones(count, 1))
    assert len(layer._routes) == 1, layer._routes.keys()


@check
def tokens_travel_as_float8():
    outputs = []
    for wire in (None, torch.float8_e4m3fn):
        layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]), wire=wire)
        tokens = random((30, 256), RANK, dtype=torch.float32).requires_grad_()
        output = layer(tokens, torch.full((30, 1), (RANK + 1) % WORLD), torch.ones(30, 1))
        (output * random((30, 256), RANK, 9, dtype=torch.float32)).sum().backward()
        outputs.append((output.detach(), tokens.grad))
    for plain, rounded in zip(*outputs):
        assert (rounded - plain).abs().le(plain.abs() / 16 + 0.02).all() and not rounded.equal(plain)
    for options in ({"capacity_factor": 1.0}, {"mp_size": WORLD} if WORLD > 1 else {"schedule": "S1"}):
        raises(lambda: moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]), wire=torch.float8_e4m3fn, **options), "wire")
    raises(lambda: moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]), wire=torch.float16), "float8_e5m2")


@check
def passes_in_flight():
    case = Case(mp_size=2)
    gc.collect()
    before = _C.open_passes()
    steps = [case.step(salt) for salt in range(3)]
    assert _C.open_passes() == before + 3
    for index in (1, 0, 2):
        steps[index][1].backward(retain_graph=index == 1)
    outputs, tokens = [each[0].detach() for each in steps], [each[2] for each in steps]
    case.compare(outputs, tokens, range(3))
    # Once more through the graph that was kept.
    for each in (*case.layer.parameters(), case.gate.weight, tokens[1]):
        each.grad = None
    steps[1][1].backward()
    case.compare(outputs[1:2], tokens[1:2], (1,))
    del steps
    gc.collect()
    assert _C.open_passes() == before, _C.open_passes()
    with torch.no_grad():
        case.step()
    assert _C.open_passes() == before


@check
def activation_checkpointing():
    for reentrant in (False, True):
        case = Case(gate="pair")
        gc.collect()
        before = _C.open_passes()

        def call(tokens):
            return checkpoint(case.layer, tokens, use_reentrant=reentrant)

        steps = [case.step(salt, call) for salt in range(2)]
        # What is saved of a pass is dropped with all else.
        assert _C.open_passes() == before, _C.open_passes() - before
        for _, loss, _ in steps:
            loss.backward()
        case.compare([each[0] for each in steps], [each[2] for each in steps], range(2))
    # Tensors that were saved may be made again, not moved.
    case = Case()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        _, loss, _ = case.step()
    gc.collect()
    raises(loss.backward, "gone")
    moeccl.torch.recover()


def again(call):
    return lambda tokens: checkpoint(call, tokens, use_reentrant=False)


def counted(case, call, salts=(0,)):
    with exchanges() as found:
        run(case, salts, call)
    return found


@check
def a_checkpoint_exchanges_rows_once_more():
    """And nothing else: of each call that is computed again one dispatch and one combine."""
    for dtype, options in ((torch.float32, {}), (torch.float32, {"ep_size": 2}), (torch.bfloat16, {})):
        def fresh():
            return Case(dtype=dtype, gate="pair", **options)

        once, case = counted(fresh(), None), fresh()
        assert counted(case, again(case.layer)) == once + collections.Counter(dispatch=1, combine=1)
        assert once["begin"] == 1 and once["gather"] == 2, once
        # Two steps in flight, a checkpoint in another, and one around two calls.
        case = fresh()
        assert counted(case, again(case.layer), (0, 1)) == collections.Counter(
            {name: 2 * each for name, each in once.items()} | {"dispatch": 4, "combine": 4})
        run(case := fresh(), (0, 1), again(again(case.layer)))
        case = fresh()
        tokens = [case.tokens(case.batch, salt) for salt in range(2)]
        gc.collect()
        before = _C.open_passes()
        both = again(lambda tokens: torch.stack([case.layer(each) for each in tokens]))(torch.stack(tokens))
        losses = [(both[salt] * case.target(case.batch, salt)).sum() / 10 for salt in range(2)]
        assert _C.open_passes() == before + 2
        with exchanges() as found:
            sum(losses).backward()
        assert found == collections.Counter(gather=2, dispatch=2, combine=2, combine_backward=2, dispatch_backward=2,
                                            average=int(case.layer.grid.replicas > 1)), found
        case.compare(list(both.detach()), tokens, (0, 1))
        # They end with the graph.
        del both, losses
        gc.collect()
        assert _C.open_passes() == before, _C.open_passes()
    # Through a graph that is kept, and where what is behind the layer alone is asked for.
    case = Case(dtype=torch.float32, gate="pair")
    output, loss, tokens = case.step(0, again(case.layer))
    loss.backward(retain_graph=True)
    for each in (*case.layer.parameters(), case.gate.weight, tokens):
        each.grad = None
    loss.backward()
    case.compare([output], [tokens])
    behind = torch.nn.Linear(EMBEDDING, EMBEDDING)
    output = again(lambda tokens: behind(case.layer(tokens)))(tokens)
    torch.autograd.grad(output.sum(), behind.weight)
    case.step()[1].backward()
    # A layer that is told nothing of other ranks' tokens.
    layer = moeccl.torch.MoE(torch.nn.ModuleList([Expert(RANK, dtype=torch.float32)]), tokens=5)
    tokens = random((5, EMBEDDING), RANK, dtype=torch.float32).requires_grad_()
    given = torch.full((5, 1), (RANK + 1) % WORLD), torch.ones(5, 1)
    with exchanges() as found:
        checkpoint(layer, tokens, *given, use_reentrant=False).sum().backward()
    assert found == collections.Counter(begin=1, dispatch=2, combine=2, combine_backward=1, dispatch_backward=1), found


@check
def distributed_data_parallel():
    for ep_size in (WORLD, 2):
        torch.manual_seed(3)
        case = Case(experts=WORLD * 2, ep_size=ep_size, gate="pair")

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.gate, self.layer = case.gate, case.layer
                self.last = torch.nn.Linear(EMBEDDING, EMBEDDING, dtype=torch.float64)

            def forward(self, tokens):
                return self.last(tokens + self.layer(tokens))

        # One process, whose layer sees all tokens.
        model = Model()
        gate = torch.nn.Linear(EMBEDDING, case.number, bias=False, dtype=torch.float64)
        last = torch.nn.Linear(EMBEDDING, EMBEDDING, dtype=torch.float64)
        last.load_state_dict(model.last.state_dict())
        gate.load_state_dict(case.gate.state_dict())
        theirs = [*gate.parameters(), *last.parameters(), *(each for expert in case.whole for each in expert.parameters())]
        parallel = torch.nn.parallel.DistributedDataParallel(moeccl.torch.exclude_experts(model))
        ours = torch.optim.Adam(parallel.parameters(), 1e-2)
        other = torch.optim.Adam(theirs, 1e-2)
        for step in range(5):
            ours.zero_grad()
            parallel(case.tokens(case.batch, step)).square().mean().backward()
            ours.step()
            other.zero_grad()
            for batch in range(case.batches):
                tokens = case.tokens(batch, step)
                weights, indices = torch.softmax(gate(tokens), -1).topk(case.top_k, -1)
                (last(tokens + one_process(case.whole, tokens, indices, weights)).square().mean() / case.batches).backward()
            other.step()
        case.close(model.last.weight, last.weight, "a parameter beside the layer")
        case.close(case.gate.weight, gate.weight, "the gate")
        for place, expert in enumerate(case.layer.experts):
            case.close(expert.w1, case.whole[case.first + place].w1, "an expert")


@check
def other_types():
    for dtype in (torch.float16, torch.bfloat16):
        case = Case(dtype=dtype)
        output, loss, tokens = case.step()
        loss.backward()
        assert output.dtype == tokens.grad.dtype == case.layer.experts[0].w1.grad.dtype == dtype
        indices = (3 * torch.arange(len(tokens))[:, None] + torch.arange(2) + RANK) % case.number
        weights = torch.tensor([[0.25, 0.5]], dtype=dtype).expand(len(tokens), 2)
        layer = moeccl.torch.MoE(case.layer.experts, num_experts=case.number)
        case.close(layer(tokens, indices, weights),
                   one_process(case.whole, tokens.detach().double(), indices, weights.double()), f"output of {dtype}")
    # What the experts get is what the tokens were, and their result is rounded once.
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    indices = torch.full((len(tokens), 1), (RANK + 1) % WORLD)
    assert torch.equal(layer(tokens, indices, torch.ones(len(tokens), 1)), tokens)
    wrong = Case(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output, loss, _ = wrong.step()
    loss.backward()
    assert output.dtype == torch.float32 and wrong.layer.experts[0].w1.grad.dtype == torch.float32


@check
def compiled_models():
    case = Case(gate="pair")
    compiled = torch.compile(lambda tokens: case.layer(tokens * 1.0) + 0.0, backend="aot_eager")
    run(case, (0, 1), compiled)


@check
def groups_of_some_ranks():
    """Of either backend; only their members call."""
    for backend in ("gloo", "cpu:moeccl"):
        groups = [dist.new_group(list(range(first, WORLD, 2)), backend=backend) for first in (0, 1)]
        group = groups[RANK % 2]
        layer = moeccl.torch.MoE(torch.nn.ModuleList([Expert(RANK)]), group=group)
        tokens, target = random((5, EMBEDDING), RANK), (RANK // 2 + 1) % (WORLD // 2)
        indices, weights = torch.full((5, 1), target), torch.ones(5, 1, dtype=torch.float64)
        assert torch.allclose(layer(tokens, indices, weights), Expert(2 * target + RANK % 2)(tokens))
        dist.barrier()
        dist.destroy_process_group(group)
    raises(lambda: moeccl.torch.MoE(torch.nn.ModuleList([Expert(0)]), group=groups[1 - RANK % 2]), "not in")


@check
def copies():
    """Copies have parameters of their own, and exchange over the same ranks."""
    for options in ({}, {"ep_size": 2}):
        case = Case(gate="pair", **options)
        kept = case.step()[0].detach()
        copied = copy.deepcopy(case.layer)
        for parameter in case.layer.experts.parameters():
            parameter.data.zero_()
        assert case.step()[0].abs().max() == 0
        assert torch.equal(copied(case.tokens(case.batch, 0)), kept)
    try:
        pickle.dumps(case.layer)
        raise AssertionError("the layer was pickled")
    except TypeError as error:
        assert "state_dict" in str(error), error


@check
def experts_in_a_plain_list():
    """As in a ModuleList: their parameters are the layer's."""
    case = Case()
    output, loss, _ = case.step()
    loss.backward()
    for kind in (list, tuple):
        layer = moeccl.torch.MoE(kind(copy.deepcopy(each) for each in case.layer.experts), case.route, top_k=2)
        layer.zero_grad()
        other, loss, _ = case.step(call=layer)
        loss.backward()
        assert torch.equal(other, output)
        theirs = dict(layer.experts.named_parameters())
        assert theirs.keys() == dict(case.layer.experts.named_parameters()).keys()
        for name, one in case.layer.experts.named_parameters():
            assert torch.equal(one.grad, theirs[name].grad), name
    raises(lambda: moeccl.torch.MoE([torch.tanh] * 2, case.route, top_k=2), "Module")


@check
def routings_are_replayed():
    """Other weights, of a gate that has changed, for the experts that were chosen before it did."""
    for top_k in (1, 2):
        case = Case(top_k=top_k)
        first, _, _ = case.step()
        chosen = case.layer.chosen()
        assert torch.equal(case.step(call=lambda tokens: case.layer(tokens, chosen=chosen))[0], first)
        with torch.no_grad():
            case.gate.weight.data += random(case.gate.weight.shape, 9)
        case.step()
        assert not torch.equal(case.layer.chosen(), chosen)
        # Nobody chose for the first token.
        chosen = torch.cat([torch.full_like(chosen[:1], -1), chosen[1:]])
        results = []
        for replayed in (True, False):
            case.layer.zero_grad()
            case.gate.zero_grad()

            def call(tokens):
                if replayed:
                    return case.layer(tokens, chosen=chosen)
                weights = torch.softmax(case.gate(tokens), -1).gather(1, chosen.clamp(min=0))
                weights = weights / weights.sum(-1, keepdim=True) if top_k > 1 else weights
                return case.layer(tokens, chosen, weights)

            output, loss, tokens = case.step(call=call)
            loss.backward()
            gradients = [each.grad for each in (tokens, case.gate.weight, *case.layer.parameters())]
            results.append([output, *gradients])
            assert torch.equal(case.layer.chosen(), chosen) and (output[0] == 0).all()
        for ours, theirs in zip(*results):
            assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14), (top_k, (ours - theirs).abs().max())
        case.layer(case.tokens(case.batch, 0), chosen=chosen)
        assert case.layer.balance_loss() > 0
    tokens = case.tokens(case.batch, 0)
    raises(lambda: case.layer(tokens, chosen=chosen[1:]), f"chosen is {(len(chosen) - 1, 2)}", "[tokens, k]")
    raises(lambda: case.layer(tokens, chosen=chosen + 9), "to 7")
    raises(lambda: moeccl.torch.MoE([Expert(RANK)])(tokens, chosen=chosen), "no gate")
    raises(lambda: Case(gate="pair").layer(tokens, chosen=chosen), "no logits")
    weights = torch.ones(len(tokens), 2)
    raises(lambda: case.layer(tokens, chosen), "chosen=")
    raises(lambda: case.layer(tokens, weights=weights), "indices come with weights")
    raises(lambda: case.layer(tokens, chosen, weights, chosen=chosen), "one of them")


@check
def prediction_and_explanation():
    case = run(Case())
    text = case.layer.explain()
    assert text.startswith("The last pass went by baseline.\nbaseline in ") and " ms, by links; then S1 in" in text, text
    text = run(Case(dtype=torch.float32)).layer.explain()
    assert "the fastest as predicted" in text and text.split(".")[0].endswith(("node", "rank", "flat")), text
    text = run(Case(capacity_factor=1.0, schedule="S2")).layer.explain()
    assert text.startswith("The last pass went by S2.\n"), text
    choices = moeccl.torch.select(nodes=[4, 4], experts=16, top_k=2, embedding=512, hidden=1024, tokens=256, mp_size=2,
                                  capacity_factor=1.0)
    assert choices[0].seconds <= choices[-1].seconds
    assert {each.name for each in choices} == {"S1", "S2"}, choices
    text = moeccl.torch.select(nodes=[4, 4], experts=16, top_k=2, embedding=512, hidden=1024, tokens=256, explain=True)
    assert "S1" in text
    raises(lambda: moeccl.torch.select(nodes=[4, 3], experts=16, top_k=2, embedding=512, hidden=8, tokens=1), "7")


@check
def algorithms_without_a_call():
    select = moeccl.torch.select
    for size in (64, 64 << 20):
        choices = select("alltoall", nodes=[8, 8, 8, 8], bytes=size)
        seconds = [each.seconds for each in choices]
        assert seconds == sorted(seconds) and seconds[0] > 0, choices
        text = select("alltoall", nodes=[8, 8, 8, 8], bytes=size, explain=True)
        assert choices[0].name in text.splitlines()[0], (choices, text)
    # Three quarters of what a rank sends leave its node.
    choices = {each.name: each for each in select("alltoall", nodes=[2, 2, 2, 2], bytes=8000)}
    assert choices["linear"].bytes_between == 6000 and not choices["linear"].measured, choices
    # A collective of a grid costs by its shape.
    whole = select("dispatch", nodes=[4, 4], bytes=1 << 20, experts=16)
    parts = select("dispatch", nodes=[4, 4], bytes=1 << 20, experts=16, ep_size=4, esp_size=2)
    assert whole[0].seconds != parts[0].seconds, (whole, parts)
    raises(lambda: select("dispatch", nodes=[4, 4], bytes=8, experts=12), "experts is 12", "8")
    raises(lambda: select("alltoal", nodes=[4, 4], bytes=8), "alltoal", "allgather")
    raises(lambda: select("alltoall", nodes=[4, 4]), "bytes")
    raises(lambda: select("alltoall", nodes=[4, 4], bytes=-1), "bytes is -1")
    raises(lambda: select("alltoall", nodes=[4, 4], bytes=8, top_k=2), "no top_k")
    raises(lambda: select("alltoall", nodes=[], bytes=8), "nNodes")
    raises(lambda: select(nodes=[4, 4], experts=16, top_k=2, embedding=512, hidden=8), "needs tokens")
    raises(lambda: select(nodes=[4, 4], experts=16, top_k=2, embedding=8, hidden=8, tokens=8, bytes=8), "no bytes")
    raises(lambda: select("dispatch", nodes=[4, 4], bytes=8, order="rows"), "order is 'rows'", "'ep'")


@check
def losses_and_loads():
    """What gates add to the loss, against the formulas in float64, with gradients for the gate alone."""
    case = Case()
    tokens = random((30, EMBEDDING), RANK, 7).requires_grad_()
    raises(case.layer.loads, "there was none")
    case.layer(tokens)
    logits = case.gate(tokens.detach())
    indices = logits.topk(2, -1).indices
    counts = torch.bincount(indices.flatten(), minlength=case.number)
    assert torch.equal(case.layer.loads(), counts)
    balance = case.number * (counts / counts.sum() * torch.softmax(logits, -1).mean(0)).sum()
    z = torch.logsumexp(logits, -1).square().mean()
    assert torch.allclose(case.layer.balance_loss().double(), balance) and torch.allclose(case.layer.z_loss().double(), z)
    ours = torch.autograd.grad(case.layer.balance_loss() + case.layer.z_loss(), case.gate.weight)
    theirs = torch.autograd.grad(balance + z, case.gate.weight)
    assert torch.allclose(ours[0], theirs[0], atol=1e-6), (ours, theirs)
    # Even choices have the least loss, and one expert that has all the largest.
    even = torch.zeros(case.number, case.number)
    assert moeccl.torch.load_balancing_loss(even, torch.arange(case.number)[:, None]) == 1
    one = torch.nn.functional.one_hot(torch.zeros(5, dtype=torch.long), case.number) * 1e4
    assert moeccl.torch.load_balancing_loss(one, torch.zeros(5, 1, dtype=torch.long)) == case.number
    for none in (moeccl.torch.load_balancing_loss(logits[:0], indices[:0]), moeccl.torch.router_z_loss(logits[:0])):
        assert none == 0
    # Choices that are not made do not count; a gate without logits has no losses.
    case = Case(gate="dropped")
    case.layer(tokens)
    assert case.layer.loads().sum() < 60
    raises(case.layer.balance_loss, "no logits", "load_balancing_loss")
    copy.deepcopy(case.layer)


@check
def wrong_use_is_told():
    experts = torch.nn.ModuleList([Expert(RANK)])
    raises(lambda: moeccl.torch.MoE(experts, ep_size=3 if WORLD % 3 else 5), "ep_size", str(WORLD))
    raises(lambda: moeccl.torch.MoE(experts, mp_size=WORLD * 2), "mp_size")
    raises(lambda: moeccl.torch.MoE(experts, num_experts=WORLD + 1), "num_experts")
    raises(lambda: moeccl.torch.MoE(experts, num_experts=2 * WORLD), "1 experts")
    raises(lambda: moeccl.torch.MoE(Expert(0)), "num_experts")
    raises(lambda: moeccl.torch.MoE(experts, capacity_factor=-1), "capacity_factor")
    raises(lambda: moeccl.torch.MoE(experts, gradients="none"), "gradients")
    raises(lambda: moeccl.torch.MoE(experts, order="mp"), "order")
    layer = moeccl.torch.MoE(experts)
    tokens, indices, weights = random((3, EMBEDDING), 1), torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    raises(lambda: layer(tokens), "no gate")
    raises(lambda: layer(tokens, indices[:2], weights), "indices")
    raises(lambda: layer(tokens, torch.full((3, 1), WORLD), weights), str(WORLD - 1))
    raises(lambda: layer(tokens, torch.full((3, 1), 2**32), weights), str(2**32), str(WORLD - 1))
    raises(lambda: layer(tokens, torch.zeros(3, 1), weights), "indices are torch.float32")
    raises(lambda: moeccl.torch.MoE(experts, top_k=2)(tokens, torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)), "differ")
    raises(lambda: layer(tokens.to(torch.complex64), indices, weights), "complex64")
    gate = torch.nn.Sequential(torch.nn.Linear(EMBEDDING, WORLD - 1).double())
    raises(lambda: moeccl.torch.MoE(experts, gate, top_k=1)(tokens), "logits", str((3, WORLD)))
    raises(lambda: moeccl.torch.MoE(experts, gate[0], top_k=1), f"{WORLD - 1} outputs", f"{WORLD} experts")
    for top_k in (0, WORLD + 1, 1.5):
        raises(lambda: moeccl.torch.MoE(experts, top_k=top_k), f"top_k is {top_k}", str(WORLD))
    raises(lambda: moeccl.torch.MoE(experts, schedule="PPMoE"), "mp_size must be")
    for about in (moeccl.torch.MoE.explain, moeccl.torch.MoE.dropped):
        raises(lambda: about(moeccl.torch.MoE(experts)), "there was none")
    raises(lambda: moeccl.torch.MoE(experts, schedule="S9"), "S9", "PPMoE")
    raises(lambda: moeccl.torch.MoE(experts, schedule="S2"), "S2", "capacity_factor")
    # What ranks do not agree on is told on all of them, before anything is sent.
    raises(lambda: layer(random((3, EMBEDDING + (RANK == 1)), 1), indices, weights), "rank 1", "elements")
    mp = moeccl.torch.MoE(experts, mp_size=2)
    count = 2 + (RANK == 1)
    choices = torch.zeros(count, 1, dtype=torch.int64)
    raises(lambda: mp(random((count, EMBEDDING), 1), choices, torch.ones(count, 1)), "rank 1", "MP group")
    wrong = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Linear(EMBEDDING, 3).double()]))
    raises(lambda: wrong(tokens, indices, weights), "results are", "12] on the CPU")
    moeccl.torch.recover()
    # The layer works after all that.
    assert torch.allclose(layer(tokens, indices + RANK, weights.double()), experts[0](tokens))


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    main(start)
