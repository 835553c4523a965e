"""Layers whose exchanges go on beside shared experts and other chunks' experts, against one process and layers of one chunk.

    torchrun --nproc-per-node 4 tests/torch/chunks.py [CHECK...]
"""

import collections
import datetime
import functools
import gc
import itertools
import math
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from exchanges import exchanges
from expert_models import EMBEDDING, EXPERTS, Expert, Model, Whole, local_experts
from harness import check, folder, main, raises
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import moeccl.torch
from moeccl import _C
from moeccl.torch.chunks import with_places

DEADLINE = 60  # seconds, on a busy machine, for what takes milliseconds
PATIENCE = 20  # seconds for an error that another rank tells


class Shared(torch.nn.Module):
    """A dense expert with a gate of its own, as Qwen2-MoE has it."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.inner = Expert(1000)
        self.gate = torch.nn.Linear(EMBEDDING, 1, bias=False, dtype=torch.float64)
        self.gate.weight.data = torch.linspace(-1, 1, EMBEDDING, dtype=torch.float64)[None]
        self.to(dtype)

    def forward(self, tokens):
        return torch.sigmoid(self.gate(tokens)) * self.inner(tokens)


class RowWise(torch.nn.Module):
    """What it makes of a row has the same bits beside any other rows."""

    def __init__(self, number, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        self.scale = torch.nn.Parameter(torch.randn(EMBEDDING, generator=generator).to(dtype))

    def forward(self, rows):
        return rows * self.scale + rows.abs()


class Batched(torch.nn.Module):
    """Experts that take all rows at once. Those without rows do nothing, and nothing connects them to the output."""

    def __init__(self, experts):
        super().__init__()
        self.each = torch.nn.ModuleList(experts)

    def forward(self, rows, begins):
        parts = [expert(rows[begin:end]) for expert, begin, end in zip(self.each, begins, begins[1:]) if end > begin]
        return torch.cat(parts) if parts else torch.zeros_like(rows)


def random(shape, *seed):
    seed = hash((7, *seed)) % 2**31
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


COUNTS = {"even": lambda batch: 20, "prime": lambda batch: (23, 7, 13, 2, 19, 3, 17, 11)[batch],
          "none on one rank": lambda batch: 0 if batch == 0 else 3 * batch + 4, "none": lambda batch: 0,
          "fewer than chunks": lambda batch: batch % 3}


def tokens_of(counts, batch, step=0):
    count = COUNTS[counts](batch)
    return random((count, EMBEDDING), batch, step), random((count, EMBEDDING), batch, step, 1)


def grids():
    """Those that the ranks allow: layers that share experts, or hold replicas; have the same tokens; have shards of experts."""
    yield {}
    if WORLD % 2 == 0:
        yield {"mp_size": 2}
        yield {"esp_size": 2}
        yield {"ep_size": WORLD // 2}
    if WORLD % 4 == 0:
        yield {"ep_size": WORLD // 4, "esp_size": 2, "mp_size": 2}


def experts_of(options, batched=False, make=Expert):
    experts = local_experts(options, make)
    return Batched(experts) if batched else torch.nn.ModuleList(experts)


def layers_of(experts):
    return experts.each if isinstance(experts, Batched) else experts


def close(ours, theirs, what, most=1e-12):
    assert ours is not None and ours.shape == theirs.shape, f"rank {RANK}: {what}"
    off = (ours.detach().double() - theirs.detach().double()).abs().max().item() if ours.numel() else 0
    size = theirs.detach().abs().max().item() if theirs.numel() else 0
    assert off <= most * (1 + size), f"rank {RANK}: {what} is off by {off} of {size}"


def one_process(shared, batches, counts, own, steps):
    """By step, the output of this rank's batch, and gradients by its loss: of tokens, of shared experts, of the gate. And the model,
    whose experts have gradients of the mean of all losses."""
    whole, dense = Whole(torch.nn.ModuleList(Expert(each) for each in range(EXPERTS))), Shared()
    mine, ours = [*dense.parameters(), whole.gate.weight], []
    for batch, step in itertools.product(range(batches), steps):
        tokens, target = tokens_of(counts, batch, step)
        tokens.requires_grad_()
        output = whole(tokens) + (dense(tokens) if shared else 0)
        loss = (output * target).sum() / 10
        if batch == own:
            gradients = torch.autograd.grad(loss, [tokens, *mine], retain_graph=True, allow_unused=True)
            ours.append((output, *gradients))
        (loss / batches).backward()
    return ours, whole


def compare(counts, steps=(0,), batched=False, call=None, **options):
    """A layer's passes, then their gradients, beside one process."""
    sizes = {name: each for name, each in options.items() if name in ("ep_size", "esp_size", "mp_size")}
    dense = Shared() if options.pop("shared", False) else None
    model = Model(experts_of(sizes, batched), shared_experts=dense, **options)
    mp = sizes.get("mp_size", 1)
    what = f"{counts}, batched: {batched}, shared: {dense is not None}, {options}"
    passes = []
    for step in steps:
        tokens, target = tokens_of(counts, RANK // mp, step)
        output = (call or (lambda model, tokens: model(tokens)))(model, tokens.requires_grad_())
        passes.append((tokens, output, (output * target).sum() / 10))
    for _, _, loss in passes:
        loss.backward()
    wanted, whole = one_process(dense is not None, WORLD // mp, counts, RANK // mp, steps)
    for (tokens, output, _), (result, of_tokens, *_) in zip(passes, wanted):
        close(output, result, f"the output, {what}")
        close(tokens.grad, of_tokens, f"the gradient of tokens, {what}")
    ours = [*(dense.parameters() if dense is not None else ()), model.gate.weight]
    for parameter, gradients in zip(ours, list(zip(*wanted))[-len(ours):]):
        close(parameter.grad, sum(gradients), f"the gradient of a parameter that all ranks have, {what}")
    compare_experts(model.layer, whole, sizes, what)
    return model


def compare_experts(layer, whole, sizes, what):
    esp, at = sizes.get("esp_size", 1), layer.grid.rank
    own = slice(at % esp * 4 // esp, (at % esp + 1) * 4 // esp)
    for place, expert in enumerate(layers_of(layer.experts)):
        theirs = whole.experts[layer.grid.ep_rank * layer.num_local_experts + place]
        for name, cut in (("first", (slice(None), own)), ("second", (own,))):
            gradient = getattr(theirs, name).grad
            gradient = torch.zeros_like(getattr(theirs, name)) if gradient is None else gradient
            close(getattr(expert, name).grad, gradient[cut], f"the gradient of {name} of an expert, {what}")


@check
def chunks_and_shared_experts_equal_one_process():
    for options, counts in itertools.product(grids(), COUNTS):
        for chunks, shared in ((3, False), (1, True), (2, True)):
            compare(counts, chunks=chunks, shared=shared, **options)
    compare("prime", chunks=7, shared=True, steps=(0, 1, 2))
    compare("prime", chunks=5, shared=True, batched=True)
    # Where ranks tell each other nothing.
    compare("none on one rank", chunks=4, shared=True, tokens=40)


@check
def experts_without_rows():
    """All tokens choose one expert, so others have no rows in any chunk; and some have rows in one chunk only."""
    for batched, chunks, shared in itertools.product((False, True), (2, 3), (False, True)):
        dense = Shared() if shared else None
        layer = moeccl.torch.MoE(experts_of({}, batched), num_experts=EXPERTS, chunks=chunks, shared_experts=dense)
        plain = moeccl.torch.MoE(experts_of({}, batched), num_experts=EXPERTS)
        for last in (EXPERTS - 1, 2):
            tokens, weights = random((11, EMBEDDING), RANK), torch.ones(11, 1, dtype=torch.float64)
            indices = torch.zeros(11, 1, dtype=torch.int64)
            indices[-1] = last
            results = []
            for each in (layer, plain):
                each.zero_grad()
                given = tokens.clone().requires_grad_()
                output = each(given, indices, weights)
                output = output + dense(given) if each is plain and shared else output
                output.square().sum().backward()
                results.append([output, given.grad, *(parameter.grad for parameter in each.experts.parameters())])
            for ours, theirs in zip(*results):
                close(ours, theirs, f"batched: {batched}, {chunks} chunks, shared: {shared}")


def both(dtype, **options):
    """Two layers of row-wise experts, of several chunks and of one, called with the same; and what they make, with gradients."""
    plain = {name: each for name, each in options.items() if name != "chunks"}
    count, results = (41, 17, 0, 29)[RANK % 4], []
    for given in (options, plain):
        experts = torch.nn.ModuleList(local_experts(given, lambda number, *_: RowWise(number, dtype)))
        layer = moeccl.torch.MoE(experts, num_experts=EXPERTS, **given)
        tokens = random((count, EMBEDDING), RANK).to(dtype).requires_grad_()
        choices = random((count, EXPERTS), RANK, 3)
        indices = choices.topk(3, -1).indices
        indices = indices.where(choices.gather(1, indices) > -0.2, -1)
        weights = random((count, 3), RANK, 4).to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        output = layer(tokens, indices, weights)
        (output * random((count, EMBEDDING), RANK, 5).to(dtype)).sum().backward()
        results.append(([output, tokens.grad, weights.grad], [each.grad for each in experts.parameters()], layer))
    return results


@check
def row_wise_experts_give_the_same_bits():
    """To outputs and gradients of tokens and weights. Gradients of parameters are sums over rows, which are rounded."""
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 1e-2)):
        for chunks in (2, 3, 5):
            ours, theirs = both(dtype, chunks=chunks)
            assert all(each[2].explain().split(",")[0].split(".")[0].split()[-1] in ("node", "rank", "flat") for each in (ours, theirs))
            assert f", in {chunks} chunks.\n" in ours[2].explain(), ours[2].explain()
            for what, one, other in zip(("the output", "the gradient of tokens", "that of weights"), ours[0], theirs[0]):
                assert one.dtype == other.dtype and torch.equal(one, other), (dtype, chunks, what, (one - other).abs().max())
            for one, other in zip(ours[1], theirs[1]):
                close(one, other, f"a parameter's gradient, {dtype}", most)


@check
def a_capacity_drops_the_same_choices():
    for options in grids():
        mp = options.get("mp_size", 1)
        for factor, groups, chunks in ((1.0, None, 3), (0.7, 2 * mp, 2), (1.3, 2 * mp, 4), (8.0, None, 2)):
            given = {**options, "capacity_factor": factor, "capacity_groups": groups}
            for counts in COUNTS:
                results = []
                for more in ({"chunks": chunks}, {}):
                    model = Model(experts_of(options), **given, **more)
                    tokens, target = tokens_of(counts, RANK // mp)
                    output = model(tokens.requires_grad_())
                    (output * target).sum().backward()
                    results.append(([output, tokens.grad, *(each.grad for each in model.parameters() if each.requires_grad)],
                                    model.layer.dropped()))
                (ours, dropped), (theirs, wanted) = results
                assert dropped == wanted, (given, counts, dropped, wanted)
                for one, other in zip(ours, theirs):
                    close(one, other, f"{given}, {counts}")


@check
def whole_numbers_of_any_type():
    """Choices that find no place become -1, which some types do not have."""
    tokens, weights = random((24, EMBEDDING), RANK), torch.full((24, 2), 0.5)
    indices = (torch.arange(24)[:, None] + torch.arange(2)) % 3
    for chunks in (1, 3):
        layer, results = moeccl.torch.MoE(experts_of({}), num_experts=EXPERTS, capacity_factor=0.5, chunks=chunks), []
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            results.append(layer(tokens, indices.to(dtype), weights))
            assert layer.dropped() > 0 and torch.equal(results[-1], results[0]), (dtype, chunks)


@check
def places_go_to_first_choices_first():
    """By hand: two places for each of two experts, in each of two capacity groups of three tokens; the sixth is padding."""
    indices = torch.tensor([[0, 1], [0, 1], [0, 1], [1, 0], [1, -1]])
    kept, dropped = with_places(indices, 2, 0.8, 2, 1, 0)
    # T is 2 * 0.8 * 5 / 2 = 4.
    assert kept.tolist() == [[0, 1], [0, 1], [-1, -1], [1, 0], [1, -1]] and dropped == 2, (kept, dropped)
    parts = [with_places(indices, 2, 0.8, 2, 2, part)[1] for part in range(2)]
    assert parts == [2, 0], parts
    empty, dropped = with_places(indices[:0], 2, 0.8, 2, 1, 0)
    assert empty.shape == (0, 2) and dropped == 0
    # With an expert that takes more than it has places for, none is left for a second choice.
    kept, dropped = with_places(torch.tensor([[0, 1], [1, 0], [0, 1], [0, 1]]), 2, 0.5, 1, 1, 0)
    assert kept.tolist() == [[0, 1], [1, -1], [0, -1], [-1, -1]] and dropped == 4, (kept, dropped)


class Changing(torch.nn.Module):
    """Experts that change their rows."""

    def forward(self, rows, begins):
        return rows.mul_(2).tanh_()


class Reusing(torch.nn.Module):
    """Experts whose results lie where the last call's did."""

    def __init__(self, dtype):
        super().__init__()
        self.room = torch.empty(1000, EMBEDDING, dtype=dtype)

    def forward(self, rows, begins):
        made = self.room[:len(rows)]
        made.copy_(rows)
        return made


@check
def experts_that_compute_in_place():
    """They may change what they get, and not what is on its way."""
    for dtype, training in itertools.product((torch.float32, torch.float64), (False, True)):
        tokens, weights = random((41, EMBEDDING), RANK).to(dtype), torch.ones(41, 1, dtype=dtype)
        call = (torch.arange(41)[:, None] + RANK) % EXPERTS, weights
        for options in ({}, {"chunks": 3}, {"shared_experts": torch.nn.Identity()}):
            shares = "shared_experts" in options
            with torch.set_grad_enabled(training):
                given = tokens.clone().requires_grad_(training)
                output = moeccl.torch.MoE(Changing(), num_experts=EXPERTS, **options)(given, *call)
            close(output, (2 * tokens).tanh() + tokens * shares, f"the output, {dtype}, {options}", 1e-5)
            if training:
                output.sum().backward()
                close(given.grad, 2 - 2 * (2 * tokens).tanh().square() + shares, f"the gradient, {dtype}, {options}", 1e-5)
        with torch.no_grad():
            close(moeccl.torch.MoE(Reusing(dtype), num_experts=EXPERTS)(tokens, *call), tokens, "in one chunk")
            for options, said in (({"chunks": 3}, "experts changed in place"),
                                  ({"shared_experts": torch.nn.ReLU(inplace=True)}, "shared_experts changed the tokens in place")):
                layer = moeccl.torch.MoE(Reusing(dtype), num_experts=EXPERTS, **options)
                raises(lambda: layer(tokens.clone(), *call), said)
                moeccl.torch.recover()


class events:
    """What a layer does, in the order in which it does it. Numbers are of chunks."""

    def __init__(self, layer):
        self.layer, self.seen, self.numbers, self.rows = layer, [], {}, {}
        self.own = {name: getattr(layer, name) for name in
                    ("start_dispatch", "start_combine", "start_combine_backward", "start_dispatch_backward", "wait_beside",
                     "results_of", "run_shared_experts")}

    def __enter__(self):
        for name, own in self.own.items():
            setattr(self.layer, name, getattr(self, f"_{name}", None) or self._exchange(name, own))
        return self

    def __exit__(self, *_):
        for name in self.own:
            delattr(self.layer, name)

    def _exchange(self, name, own):
        def call(ticket, *given):
            number = self.numbers.setdefault(ticket[0].item(), len(self.numbers))
            assert given[-1] is True, "it is not beside the caller"
            self.seen.append(f"{name[6:]} {number}")
            made = own(ticket, *given)
            if name == "start_dispatch":
                self.rows[number] = made[0]
            return made
        return call

    def _wait_beside(self):
        self.seen.append("wait")
        self.own["wait_beside"]()

    def _computing(self, what, made):
        """Notes it, and where its gradient is computed."""
        self.seen.append(what)
        if made.requires_grad:
            made.register_hook(lambda gradient: self.seen.append(f"{what} backward"))
        return made

    def _results_of(self, rows, begins):
        number = sum(each.startswith("experts") and "backward" not in each for each in self.seen)
        return self._computing(f"experts {number}", self.own["results_of"](rows, begins))

    def _run_shared_experts(self, tokens):
        return self._computing("shared experts", self.own["run_shared_experts"](tokens))


FORWARD = """dispatch 0; shared experts; wait
dispatch 1; experts 0; wait; combine 0
dispatch 2; experts 1; wait; wait; combine 1
experts 2; wait; combine 2
wait"""
BACKWARD = """combine_backward 2; wait
combine_backward 1; experts 2 backward; wait
combine_backward 0; dispatch_backward 2; experts 1 backward; wait; wait
dispatch_backward 1; experts 0 backward; wait
dispatch_backward 0; shared experts backward; wait"""


def flat(text):
    return [each for line in text.splitlines() for each in line.split("; ")]


@check
def experts_run_between_start_and_end_of_exchanges():
    """In float32, of a layer without a schedule, and in float64."""
    for dtype, again in ((torch.float32, False), (torch.float64, False), (torch.float32, True)):
        model = Model(experts_of({}), chunks=3, shared_experts=Shared()).to(dtype)
        tokens = tokens_of("prime", RANK)[0].to(dtype).requires_grad_()
        with events(model.layer) as seen:
            output = checkpoint(model, tokens, use_reentrant=False) if again else model(tokens)
            forward = seen.seen[:]
            output.sum().backward()
        assert forward == flat(FORWARD), forward
        backward, wanted = seen.seen[len(forward):], flat(BACKWARD)
        if again:  # a recomputation lies between
            backward, wanted = ([each for each in some if "backward" in each] for some in (backward, wanted))
        assert backward == wanted, (dtype, again, backward)


@check
def rows_arrive_while_experts_compute():
    """The next chunk's rows come while nobody waits for them: in the experts of the chunk before, and in shared experts."""
    class Waiting(torch.nn.Module):
        """Makes rows of themselves, once those of the chunk of that number are there."""

        number = None

        def forward(self, rows):
            if self.number is not None:
                if self.number in wanted:
                    await_rows(self.number)
                self.number += 1
            return rows * 1

    def await_rows(number):
        """Other ranks are at this place, too, or will be."""
        began = time.monotonic()
        while not torch.equal(seen.rows[number], wanted[number]):
            assert time.monotonic() - began < DEADLINE, f"chunk {number} has not arrived: {seen.seen}"
            time.sleep(0.001)
        arrived.append(number)

    experts = torch.nn.ModuleList(Waiting() for _ in local_experts({}, Expert))
    layer = moeccl.torch.MoE(experts, num_experts=EXPERTS, chunks=3, shared_experts=Waiting())
    tokens = (random((60, EMBEDDING), RANK) + 9).float()
    indices, weights = (torch.arange(60)[:, None] + RANK) % EXPERTS, torch.ones(60, 1)
    with events(layer) as first, torch.no_grad():
        layer(tokens, indices, weights)
        wanted = {number: 2 * rows for number, rows in first.rows.items()}
    arrived = []
    layer.shared_experts.number, layer.experts[0].number = 0, 1
    with events(layer) as seen, torch.no_grad():
        output = layer(2 * tokens, indices, weights)
    assert arrived == [0, 1, 2] and torch.equal(output, 4 * tokens), arrived


@check
def nobody_waits_where_an_exchange_begins():
    """Other ranks begin it only once rank 0 has computed what stands behind its beginning, forward and backward."""
    model = Model(experts_of({}), chunks=3, shared_experts=Shared()).float()
    store = dist.PrefixStore("chunks", dist.distributed_c10d._get_default_store())
    behind = {"dispatch 0": "shared experts", "dispatch 1": "experts 0", "combine 0": "experts 1", "dispatch 2": "experts 1",
              "combine 1": "experts 2", "combine_backward 1": "experts 2 backward", "combine_backward 0": "experts 1 backward",
              "dispatch_backward 2": "experts 1 backward", "dispatch_backward 1": "experts 0 backward",
              "dispatch_backward 0": "shared experts backward"}

    class Telling(list):
        def append(self, event):
            if RANK == 0:
                store.set(event, "")
            elif event in behind:
                store.wait([behind[event]], datetime.timedelta(seconds=DEADLINE))
            super().append(event)

    with events(model.layer) as found:
        found.seen = Telling()
        model(tokens_of("even", RANK)[0].float()).sum().backward()
    assert set(behind) <= set(found.seen), found.seen


@check
def what_ranks_exchange():
    """They tell each other once before a pass of any chunks. A checkpoint's recomputation exchanges rows alone."""
    once = collections.Counter(gather=2, begin=3, dispatch=3, combine=3, combine_backward=3, dispatch_backward=3)
    model = Model(experts_of({}), chunks=3, shared_experts=Shared()).float()
    tokens = tokens_of("prime", RANK)[0].float().requires_grad_()
    gc.collect()
    before = _C.open_passes()
    for again in (False, True):
        with exchanges() as found:
            output = checkpoint(model, tokens, use_reentrant=False) if again else model(tokens)
            assert _C.open_passes() == before + 3, "of a checkpoint they stay beside it"
            output.sum().backward()
        assert found == once + collections.Counter(dict(dispatch=3, combine=3) if again else {}), found
        del output
        gc.collect()
        assert _C.open_passes() == before, _C.open_passes()
    # Under a schedule a checkpoint drops what passes keep.
    model.double()
    output = checkpoint(model, tokens.double(), use_reentrant=False)
    gc.collect()
    assert _C.open_passes() == before
    output.sum().backward()


@check
def checkpoints_and_micro_batches():
    for reentrant, options in itertools.product((False, True), grids()):
        compare("prime", (0, 1), chunks=3, shared=True, **options,
                call=lambda model, tokens: checkpoint(model, tokens, use_reentrant=reentrant))
    # Gradients once more through a graph that was kept, and of tokens alone.
    model = Model(experts_of({}), chunks=3, shared_experts=Shared())
    tokens = tokens_of("prime", RANK)[0].requires_grad_()
    loss = model(tokens).square().sum()
    (wanted,) = torch.autograd.grad(loss, tokens, retain_graph=True)
    assert all(each.grad is None for each in model.parameters())
    experts = list(model.layer.experts.parameters())
    loss.backward(inputs=experts, retain_graph=True)
    some = [each.grad.clone() for each in experts]
    model.zero_grad()
    loss.backward()
    assert torch.equal(tokens.grad, wanted) and all(torch.equal(each, one.grad) for each, one in zip(some, experts))


@check
def selective_checkpoints():
    """Whatever operators they keep the results of."""
    for options, kept in itertools.product(({}, {"capacity_factor": 1.0}), ([torch.ops.aten.mm.default], None)):
        def policy(context, operator, *given, kept=kept, **named):
            keeps = kept is None or operator in kept
            return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

        results = []
        for again in (False, True):
            model = Model(experts_of({}), chunks=3, shared_experts=Shared(), **options).float()
            tokens = tokens_of("prime", RANK)[0].float().requires_grad_()
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            output = checkpoint(model, tokens, use_reentrant=False, context_fn=contexts) if again else model(tokens)
            output.square().sum().backward()
            results.append([output, tokens.grad, *(each.grad for each in model.parameters() if each.requires_grad)])
        assert all(torch.equal(*each) for each in zip(*results)), (options, kept)


def parallel(model):
    return DistributedDataParallel(moeccl.torch.exclude_experts(model))


class Beside(Whole):
    def __init__(self, experts):
        super().__init__(experts)
        self.shared_experts = Shared()

    def forward(self, tokens):
        return super().forward(tokens) + self.shared_experts(tokens)


def loss_of(model, counts, batch, step):
    tokens = tokens_of(counts, batch, step)[0]
    return 3 * (model(tokens) - tokens.sin()).square().sum()


@check
def trained_and_clipped():
    """Norms and parameters of 10 steps under DistributedDataParallel: shared experts count once, whatever the number of ranks."""
    for options in grids():
        model = Model(experts_of(options), shared_experts=Shared(), chunks=2, **options)
        ignored = set(moeccl.torch.exclude_experts(model)._ddp_params_and_buffers_to_ignore)
        assert not any("shared_experts" in each for each in ignored) and any(".experts." in each for each in ignored), ignored
        assert not {*model.layer.shared_experts.parameters()} & moeccl.torch.expert_parameters(model)
        ours, whole = parallel(model), Beside(torch.nn.ModuleList(Expert(each) for each in range(EXPERTS)))
        optimizers = [torch.optim.Adam(each.parameters(), 1e-2) for each in (ours, whole)]
        mp = options.get("mp_size", 1)
        for step in range(10):
            counts = ("prime", "none on one rank")[step % 2]
            ours.zero_grad(), whole.zero_grad()
            loss_of(ours, counts, RANK // mp, step).backward()
            for batch in range(WORLD // mp):
                (loss_of(whole, counts, batch, step) / (WORLD // mp)).backward()
            total = moeccl.torch.get_total_norm([each.grad for each in ours.parameters() if each.grad is not None])
            clipped = moeccl.torch.clip_grad_norm_(ours.parameters(), 1.0)
            wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
            assert torch.equal(total, clipped) and math.isclose(clipped, wanted, rel_tol=1e-9), (options, step, clipped, wanted)
            for each in optimizers:
                each.step()
        for name, each in whole.shared_experts.named_parameters():
            close(model.layer.shared_experts.get_parameter(name), each, f"{name} of shared experts, {options}", 1e-8)


@check
def shared_experts_in_state_dicts():
    """Under their own names, as gates are; saved for one ep_size, loaded on another."""
    sizes = [{"ep_size": each} for each in {1, 2, WORLD} if WORLD % each == 0]
    for options in sizes:
        model = Model(experts_of(options), shared_experts=Shared(), chunks=3, **options)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        averaging = parallel(model)
        loss_of(averaging, "even", RANK, 0).backward()
        optimizer.step()
        names = {f"layer.shared_experts.{name}" for name in Shared().state_dict()}
        state = model.state_dict()
        assert names == {each for each in state if "shared_experts" in each}, state.keys()
        assert all(type(state[each]) is torch.Tensor for each in names)
        with torch.no_grad():
            wanted = model(tokens_of("even", RANK, 9)[0])
        with folder() as path:
            dcp.save({"model": state}, checkpoint_id=path)
            for others in sizes:
                other = Model(experts_of(others), shared_experts=Shared(), **others)
                loaded = {"model": other.state_dict()}
                dcp.load(loaded, checkpoint_id=path)
                other.load_state_dict(loaded["model"])
                with torch.no_grad():
                    close(other(tokens_of("even", RANK, 9)[0]), wanted, f"from {options} to {others}")


@check
def wrong_chunks_and_shared_experts_are_told():
    experts = experts_of({})
    for chunks in (0, -1, 65, 1.5, True, "2", None):
        raises(lambda: moeccl.torch.MoE(experts, chunks=chunks), f"chunks is {chunks!r} on rank {RANK} ", "from 1 to 64")
    raises(lambda: moeccl.torch.MoE(experts, chunks=2, learn=True), "learn is True and chunks is 2", "chunks=1")
    raises(lambda: moeccl.torch.MoE(experts, chunks=2, schedule="S2", capacity_factor=1.0), "'S2' and chunks is 2", "chunks=1")
    raises(lambda: moeccl.torch.MoE(experts, chunks=2, capacity_factor=1.0, capacity_groups=0), "capacity_groups is 0")
    raises(lambda: moeccl.torch.MoE(experts, shared_experts=torch.tanh), "shared_experts is a builtin", f"rank {RANK} ", "Module")
    raises(lambda: moeccl.torch.MoE(experts, shared_experts=[Shared()]), "shared_experts is a list")


@check
def ranks_that_differ_are_told():
    """Before anything is sent, so that all ranks go on."""
    if WORLD == 1:
        return
    tokens, last = tokens_of("even", RANK)[0], WORLD - 1
    for options, said in (({"chunks": 3 if RANK == last else 2}, ("chunks: 3", "with 2")),
                          ({"chunks": 2 if RANK == last else 1}, ("chunks: 2", "with 1")),
                          ({"shared_experts": Shared() if RANK == last else None}, ("shared_experts (1: yes): 1", "with 0"))):
        model = Model(experts_of({}), **options)
        raises(lambda: model(tokens), f"rank {last} of the layer's grid came with", "rank 0", "they must be the same", *said)
        Model(experts_of({}), chunks=2)(tokens).sum().backward()
    # Where ranks tell each other nothing, routes do: a chunk has so many tokens.
    model = Model(experts_of({}), tokens=20, chunks=4 if RANK == last else 2)
    raises(lambda: model(tokens), "chunks is", "tokens is 20", "the same on all ranks")


class Failing:
    """Raises in a call, or where the gradient of its result is computed."""

    left = None  # calls until then; None: never
    in_backward = False

    def forward(self, rows):
        results, left = super().forward(rows), self.left
        self.left = None if left is None else left - 1
        if left == 0 and self.in_backward:
            results.register_hook(self.fail)
        elif left == 0:
            self.fail()
        return results

    def fail(self, *_):
        raise ZeroDivisionError("a module of its own")


class FailingExpert(Failing, Expert):
    pass


class FailingShared(Failing, Shared):
    pass


class Pair(torch.nn.Module):
    """Experts that make something else of their rows."""

    def forward(self, rows, begins):
        return rows, rows


def error_of(call):
    began = time.monotonic()
    try:
        call()
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        assert time.monotonic() - began < PATIENCE, error
        return str(error)
    return ""


@check
def errors_in_the_middle_of_chunks():
    """While exchanges go on beside it. All ranks get the error, and go on behind recover()."""
    if WORLD == 1:
        return
    for dtype, options in itertools.product((torch.float64, torch.float32), ({}, {"ep_size": WORLD // 2})):
        model = Model(experts_of(options, make=FailingExpert), chunks=3, shared_experts=FailingShared(), **options).to(dtype)
        plain, dense = Model(experts_of(options), **options).to(dtype), Shared(dtype)
        tokens = tokens_of("even", RANK)[0].to(dtype)
        layer = model.layer
        for in_backward, (place, left) in itertools.product((False, True), enumerate((0, 1, 2, 0))):
            failing = layer.shared_experts if place == 3 else layer.experts[0]
            if RANK == 1:
                failing.left, failing.in_backward = left, in_backward
            text = error_of(lambda: model(tokens).sum().backward())
            what = f"{dtype}, {options}, in backward: {in_backward}, {place}: {text}"
            assert RANK != 1 or "a module of its own" in text, what
            if in_backward:
                # Rank 1 tells others where it comes to its next pass, if they need anything of it.
                complete = place == 3 and layer.grid.replicas == 1
                text = text if RANK != 1 and text else error_of(lambda: model(tokens))
                assert text == "" if complete else "not finished on this rank" in text, what
            else:
                assert "a module of its own" in text, what
            moeccl.torch.recover()
            model.zero_grad()
            close(model(tokens), plain(tokens) + dense(tokens), f"behind recover(), {what}", 1e-5)
    # Shared experts that make something else.
    model = Model(experts_of({}), shared_experts=torch.nn.Linear(EMBEDDING, 3, dtype=torch.float64))
    text = error_of(lambda: model(tokens_of("even", RANK)[0]))
    assert "shared_experts made (20, 3) of tokens (20, 6)" in text, text
    moeccl.torch.recover()
    model.layer.shared_experts = torch.nn.LSTM(EMBEDDING, EMBEDDING, dtype=torch.float64)
    text = error_of(lambda: model(tokens_of("even", RANK)[0]))
    assert "shared_experts made a tuple" in text, text
    moeccl.torch.recover()
    for chunks in (1, 2):
        layer = moeccl.torch.MoE(Pair(), num_experts=EXPERTS, chunks=chunks)
        text = error_of(lambda: layer(torch.ones(8, EMBEDDING), torch.arange(8)[:, None], torch.ones(8, 1)))
        assert "experts made a tuple" in text, text
        moeccl.torch.recover()


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    assert EXPERTS % WORLD == 0


if __name__ == "__main__":
    main(start)
