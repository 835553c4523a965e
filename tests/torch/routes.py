"""Routes of moeccl.torch against dense layers in float64.

    torchrun --nproc-per-node 4 tests/torch/routes.py [CHECK...]
"""

import gc
import itertools
import time
import weakref

import torch
import torch.distributed as dist
from harness import check, main, raises
from torch.utils.checkpoint import checkpoint

import moeccl.torch
from moeccl import _C

EXPERTS, HIDDEN, CHOICES = 7, 12, 3
PATIENCE = 20  # seconds, on a busy machine; without a word from the other rank it is minutes


def start():
    global RANK, WORLD
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


def seeded(*seed):
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def random(*shape, seed):
    return torch.randn(*shape, generator=seeded(*shape, *seed), dtype=torch.float64)


def matrices(seed=0):
    return random(EXPERTS, HIDDEN, HIDDEN, seed=(seed, 77)) / 4


def tokens_on(rank, step):
    """Any number, none too."""
    return (3 * rank + 5 * step + 2) % 11 * (rank != step % 5)


def routing_of(rank, step):
    """Tokens, experts (some of them -1, none of them the last two), weights, and the gradient of the output."""
    count = tokens_on(rank, step)
    indices = torch.rand(count, EXPERTS - 2, generator=seeded(rank, step)).argsort(1)[:, :CHOICES]
    indices = indices.where(torch.rand(count, CHOICES, generator=seeded(rank, step, 1)) < 0.8, -1)
    weights = torch.rand(count, CHOICES, generator=seeded(rank, step, 2), dtype=torch.float64)
    return random(count, HIDDEN, seed=(rank, step, 3)), indices, weights, random(count, HIDDEN, seed=(rank, step, 4))


def dense(step):
    """What all ranks' tokens make, and the gradients of all, in float64."""
    experts = matrices().requires_grad_()
    outputs, leaves = [], []
    for rank in range(WORLD):
        tokens, indices, weights, gradient = routing_of(rank, step)
        tokens.requires_grad_(), weights.requires_grad_()
        made = torch.einsum("eij,tj->tei", experts, tokens)
        chosen = torch.nn.functional.one_hot(indices + 1, EXPERTS + 1)[:, :, 1:].to(torch.float64)
        output = torch.einsum("tk,tke,tei->ti", weights, chosen, made)
        (output * gradient).sum().backward()
        outputs.append(output.detach())
        leaves.append((tokens.grad, weights.grad))
    return outputs[RANK], leaves[RANK], experts.grad


def run_experts(rows, handle, own):
    """Experts with rows alone: those without any have no part in the gradients."""
    sizes = handle.offsets.diff(prepend=handle.offsets.new_zeros(1)).tolist()
    parts = [part @ matrix.T for part, matrix in zip(rows.split(sizes), own) if len(part)]
    return torch.cat(parts) if parts else rows.new_empty(0, HIDDEN)


def own_matrices(route):
    mine = matrices()[route.first_expert:route.first_expert + route.num_local_experts]
    return mine.float().requires_grad_()


def through(route, tokens, indices, weights, own, handle=None):
    if handle is None:
        rows, handle = route.dispatch(tokens, indices, weights)
    else:
        rows, handle = route.dispatch(tokens, handle=handle)
    results = run_experts(rows, handle, own)
    if route.weights == "rows":
        results = results * handle.row_weights[:, None]
    return route.combine(results, handle)


def near(got, wanted, what, tolerance=2e-5):
    assert got.shape == wanted.shape, f"{what}: {got.shape} instead of {wanted.shape}"
    error = (got.double() - wanted).abs().max().item() if got.numel() else 0
    assert error <= tolerance * (1 + (wanted.abs().max().item() if wanted.numel() else 0)), f"{what} is off by {error}"


def as_dense(route, step, output, tokens, weights, own):
    """Output and gradients are those of dense layers."""
    expected, (of_tokens, of_weights), of_experts = dense(step)
    near(output, expected, "the output")
    near(tokens.grad, of_tokens, "the gradient of tokens")
    near(weights.grad, of_weights, "the gradient of weights")
    mine = of_experts[route.first_expert:route.first_expert + route.num_local_experts]
    near(own.grad if own.grad is not None else torch.zeros_like(own), mine, "the gradient of experts")


def step_of(route, step):
    own = own_matrices(route)
    tokens, indices, weights, gradient = routing_of(RANK, step)
    tokens, weights = tokens.float().requires_grad_(), weights.float().requires_grad_()
    output = through(route, tokens, indices, weights, own)
    (output * gradient).sum().backward()
    as_dense(route, step, output, tokens, weights, own)


@check
def any_tokens_against_a_dense_layer():
    for weights, algorithm in itertools.product(("combine", "rows"), ("node", "rank", "flat", None)):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=weights, algorithm=algorithm)
        for step in range(6):
            step_of(route, step)


@check
def aligned_rows_against_a_dense_layer():
    for weights in ("combine", "rows"):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=weights, alignment=4)
        for step in range(3):
            step_of(route, step)
            tokens, indices, weights_of, _ = routing_of(RANK, step)
            rows, handle = route.dispatch(tokens, indices, weights_of)
            assert not (handle.offsets % 4).any() and (handle.counts <= handle.offsets.diff(prepend=torch.zeros(1).int())).all()
            assert (rows != 0).any(1).sum() == handle.counts.sum(), "padding is not zero"


@check
def rows_by_token_against_a_dense_layer():
    for algorithm, step in itertools.product(("node", "rank", "flat", None), range(4)):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights="rows", algorithm=algorithm,
                                   rows_by_token=True)
        own = own_matrices(route)
        tokens, indices, weights, gradient = routing_of(RANK, step)
        tokens, weights = tokens.float().requires_grad_(), weights.float().requires_grad_()
        rows, handle = route.dispatch(tokens, indices, weights)
        assert handle.experts.shape == handle.row_weights.shape == (handle.rows, CHOICES)
        made = torch.einsum("rkij,rj->rki", own[handle.experts.long().clamp(min=0)], rows)
        output = route.combine((made * handle.row_weights[..., None]).sum(1), handle)
        (output * gradient).sum().backward()
        as_dense(route, step, output, tokens, weights, own)


@check
def what_has_no_room_is_dropped_and_counted():
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, max_rows=2)
    tokens, indices, weights, _ = routing_of(RANK, 2)
    tokens, weights = tokens.float(), weights.float().requires_grad_()
    rows, handle = route.dispatch(tokens, indices, weights)
    assert len(rows) <= 2
    output = route.combine(rows, handle)
    output.sum().backward()
    kept = weights.grad != 0
    assert handle.dropped == (indices >= 0).sum() - kept.sum(), "another number was dropped"
    near(output, ((weights * kept).sum(1, keepdim=True) * tokens).detach().double(), "the output")
    counts = torch.tensor([handle.dropped, len(rows), int((indices >= 0).sum())])
    dist.all_reduce(counts)
    assert counts[0] > 0 and counts[0] + counts[1] == counts[2], counts


@check
def rows_travel_as_float8():
    for wire, bits in ((torch.float8_e4m3fn, 3), (torch.float8_e5m2, 2)):
        route = moeccl.torch.Route(EXPERTS, CHOICES, 256, dtype=torch.float32, wire=wire)
        plain = moeccl.torch.Route(EXPERTS, CHOICES, 256, dtype=torch.float32)
        _, indices, weights, _ = routing_of(RANK, 2)
        tokens = random(len(indices), 256, seed=(RANK, 9)).float().requires_grad_()
        gradient = random(len(indices), 256, seed=(RANK, 10)).float()

        def close(got, wanted):
            assert got.dtype == torch.float32 and (got - wanted).abs().le(wanted.abs() * 2**-(bits + 1) + 0.01).all()

        both = []
        for each in (route, plain):
            rows, handle = each.dispatch(tokens, indices, weights)
            kept = rows.detach().requires_grad_()
            (each.combine(kept, handle) * gradient).sum().backward()
            both.append((rows.detach(), kept.grad))
        close(both[0][0], both[1][0])
        close(both[0][1], both[1][1])
        assert both[1][0].numel() == 0 or not both[0][0].equal(both[1][0]), "rows were not rounded"


@check
def without_weights():
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=None)
    tokens, indices, _, _ = routing_of(RANK, 1)
    tokens = tokens.float().requires_grad_()
    rows, handle = route.dispatch(tokens, indices)
    output = route.combine(rows, handle)
    output.sum().backward()
    chosen = (indices >= 0).sum(1, keepdim=True)
    near(output, (chosen * tokens).detach().double(), "the output")
    near(tokens.grad, chosen.expand_as(tokens).double(), "the gradient of tokens")


@check
def shards_add_up():
    if WORLD % 2:
        return
    for order in ("esp", "ep"):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, esp_size=2, order=order)
        tokens, indices, weights, _ = routing_of(RANK, 2)
        tokens, weights = tokens.float(), weights.float().requires_grad_()
        rows, handle = route.dispatch(tokens, indices, weights)
        output = route.combine(rows / 2, handle)
        output.sum().backward()
        factor = (weights * (indices >= 0)).sum(1, keepdim=True)
        near(output, (factor * tokens).detach().double(), "the output")
        near(weights.grad, (tokens.sum(1, keepdim=True) * (indices >= 0)).double(), "the gradient of weights")


@check
def counts_are_tensors():
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    everyone = [routing_of(rank, 3) for rank in range(WORLD)]
    tokens, indices, weights, _ = everyone[RANK]
    with torch.no_grad():
        rows, handle = route.dispatch(tokens, indices, weights)
    mine = range(route.first_expert, route.first_expert + route.num_local_experts)
    by_rank = torch.tensor([[(each[1] == expert).sum() for each in everyone] for expert in mine]).view(-1, WORLD)
    assert handle.rank_counts.equal(by_rank) and handle.counts.equal(by_rank.sum(1)), handle.rank_counts
    assert handle.offsets.dtype == torch.int32 and handle.offsets.equal(by_rank.sum(1).cumsum(0).int())
    wanted = [each[0][(each[1] == expert).any(1)].float() for expert in mine for each in everyone]
    assert rows.equal(torch.cat(wanted) if wanted else rows.new_empty(0, HIDDEN)), "rows in another order"
    assert handle.rows == len(rows) and not rows.requires_grad and handle.tokens == len(tokens)
    assert handle.experts.equal(torch.repeat_interleave(handle.counts))


@check
def a_handle_keeps_the_layout():
    """Two tensors by one routing, whose gradients add up, and another pass in between."""
    for mode in ("combine", "rows"):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=mode)
        own = own_matrices(route)
        tokens, indices, weights, gradient = routing_of(RANK, 4)
        weights = weights.float().requires_grad_()
        first, second = tokens.float().requires_grad_(), (2 * tokens).float().requires_grad_()
        rows, handle = route.dispatch(first, indices, weights)
        step_of(route, 1)
        results = run_experts(rows, handle, own)
        output = route.combine(results if mode == "combine" else results * handle.row_weights[:, None], handle)
        again = through(route, second, None, None, own, handle)
        ((output + again) * gradient).sum().backward()
        expected, (of_tokens, of_weights), _ = dense(4)
        near(output, expected, "the first output")
        near(again, 2 * expected, "the second output")
        near(first.grad, of_tokens, "the first gradient")
        near(second.grad, of_tokens, "the second gradient")
        near(weights.grad, 3 * of_weights, "the gradient of weights")


@check
def sixteen_bits_keep_float32_weights():
    for dtype, tolerance in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=dtype)
        tokens, indices, weights, _ = routing_of(RANK, 2)
        given = weights.float().requires_grad_()
        rows, handle = route.dispatch(tokens.to(dtype), indices, given)
        output = route.combine(rows, handle)
        output.sum().backward()
        factor = (weights * (indices >= 0)).sum(1, keepdim=True)
        near(output, factor * tokens.to(dtype).double(), "the output", tolerance)
        assert output.dtype == dtype and given.grad.dtype == torch.float32
        wanted = tokens.to(dtype).double().sum(1, keepdim=True) * (indices >= 0)
        near(given.grad, wanted, "the gradient of weights", 1e-5)


@check
def checkpoints_compute_it_again():
    for mode in ("combine", "rows"):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=mode)
        own = own_matrices(route)
        for step in range(3):
            tokens, indices, weights, gradient = routing_of(RANK, step)
            tokens, weights = tokens.float().requires_grad_(), weights.float().requires_grad_()
            output = checkpoint(through, route, tokens, indices, weights, own, use_reentrant=False)
            (output * gradient).sum().backward()
            expected, (of_tokens, of_weights), _ = dense(step)
            near(output, expected, "the output")
            near(tokens.grad, of_tokens, "the gradient of tokens")
            near(weights.grad, of_weights, "the gradient of weights")


@check
def halves_go_on_beside_the_caller():
    """Each half started, something computed, and awaited; forward and backward, with kept handles and gradients of all."""
    for mode, beside in itertools.product(("combine", "rows"), ((True, True), (True, False), (False, True))):
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, weights=mode)
        own = own_matrices(route)
        for step in range(4):
            tokens, indices, weights, gradient = routing_of(RANK, step)
            tokens, weights = tokens.float().requires_grad_(), weights.float().requires_grad_()

            def part(tokens, weights):
                begun = route.dispatch(tokens, indices, weights, async_op=beside[0])
                shared = tokens * 2
                rows, handle = begun.wait() if beside[0] else begun
                results = run_experts(rows, handle, own)
                results = results * handle.row_weights[:, None] if mode == "rows" else results
                ended = route.combine(results, handle, async_op=beside[1])
                return (ended.wait() if beside[1] else ended) + shared

            own.grad = None
            output = checkpoint(part, tokens, weights, use_reentrant=False) if step % 2 else part(tokens, weights)
            (output * gradient).sum().backward()
            expected, (of_tokens, of_weights), of_experts = dense(step)
            near(output, expected + 2 * tokens.detach(), "the output")
            near(tokens.grad, of_tokens + 2 * gradient, "the gradient of tokens")
            near(weights.grad, of_weights, "the gradient of weights")
            mine = of_experts[route.first_expert:route.first_expert + route.num_local_experts]
            near(own.grad if own.grad is not None else torch.zeros_like(own), mine, "the gradient of experts")
    # What is never awaited is no obstacle to what comes.
    route.dispatch(*(each.float() if each.is_floating_point() else each for each in routing_of(RANK, 2)[:3]), async_op=True)
    step_of(route, 3)


@check
def a_checkpoint_drops_what_halves_keep():
    """The pass, and with it the rows' results, until they are computed again."""
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    tokens, indices, weights, gradient = routing_of(RANK, 2)
    tokens = tokens.float().requires_grad_()

    def part(tokens):
        rows, handle = route.dispatch(tokens, indices, weights.float(), async_op=True).wait()
        return route.combine(rows * 2, handle, async_op=True).wait()

    gc.collect()
    before = _C.open_passes()
    output = checkpoint(part, tokens, use_reentrant=False)
    gc.collect()
    assert _C.open_passes() == before, _C.open_passes() - before
    (output * gradient).sum().backward()
    near(tokens.grad, 2 * (weights * (indices >= 0)).sum(1, keepdim=True) * gradient, "the gradient of tokens")


@check
def a_checkpoint_sends_rows_alone():
    """Behind prepare() nothing is told a second time: a recomputation begins no pass."""
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    own = own_matrices(route)
    begun = []
    begin = route.begin
    route.begin = lambda *given: begun.append(1) or begin(*given)
    for step in range(3):
        tokens, indices, weights, gradient = routing_of(RANK, step)
        tokens, weights = tokens.float().requires_grad_(), weights.float().requires_grad_()
        handle = route.prepare(tokens, indices, weights)
        computed = []

        def part(tokens):
            computed.append(1)
            rows, _ = route.dispatch(tokens, handle=handle)
            return route.combine(run_experts(rows, handle, own), handle)

        (checkpoint(part, tokens, use_reentrant=False) * gradient).sum().backward()
        assert len(computed) == 2 and len(begun) == step + 1
        _, (of_tokens, of_weights), _ = dense(step)
        near(tokens.grad, of_tokens, "the gradient of tokens")
        near(weights.grad, of_weights, "the gradient of weights")


@check
def groups_of_ranks_and_of_other_backends():
    """A route of half of the ranks, and two of all on a group whose backend is Gloo."""
    if WORLD % 2 == 0:
        route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32, ep_size=WORLD // 2)
        assert route.grid.replicas == 2
        tokens, indices, weights, _ = routing_of(RANK, 2)
        rows, handle = route.dispatch(tokens, indices, weights)
        assert handle.rank_counts.shape == (route.num_local_experts, WORLD // 2)
        factor = (weights * (indices >= 0)).sum(1, keepdim=True)
        near(route.combine(rows, handle), factor * tokens, "the output")
    gloo = dist.new_group(backend="gloo")
    for dtype in (torch.float32, torch.float32):
        step_of(moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=dtype, group=gloo), 2)


@check
def one_ranks_error_before_a_pass_is_raised_on_all():
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    tokens, indices, weights, _ = routing_of(0, 1)
    wrong = (((tokens, indices + EXPERTS, weights), f"must be from 0 to {EXPERTS - 1}"),
             ((tokens, indices, weights[:-1]), "weights are"), ((tokens[:, 1:], indices, weights), "tokens are"),
             ((tokens, indices.double(), weights), "whole numbers"), ((tokens, indices), "and weights"))
    for failing, (given, said) in enumerate(wrong):
        failing %= WORLD
        began = time.monotonic()
        call = given if RANK == failing else routing_of(RANK, 1)[:3]
        text = raises(lambda: route.dispatch(*call), said)
        assert time.monotonic() - began < PATIENCE, text
        assert RANK == failing or f"rank {failing} of the process group" in text, text
        step_of(route, failing)  # as before


@check
def an_error_in_the_middle_ends_the_pass_on_all():
    if WORLD == 1:
        return
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    for call in ("combine", "backward"):
        tokens, indices, weights, _ = routing_of(RANK, 1)
        rows, handle = route.dispatch(tokens.float().requires_grad_(), indices, weights)
        dist.barrier()  # the error ends what others are at
        results = rows[1:] if RANK == 1 and call == "combine" else rows

        def fails():
            output = route.combine(results, handle)
            if RANK == 1:
                output.register_hook(lambda gradient: 1 / 0)
            output.sum().backward()
            # A pass that needs nothing of rank 1 may be complete before this rank hears of the error. The next one is none.
            route.dispatch(tokens.float(), indices, weights)

        if RANK == 1 and call == "combine" and len(rows) == 0:
            results = rows.new_empty(3, HIDDEN)
        began = time.monotonic()
        if RANK == 1 and call == "backward":
            try:
                fails()
            except ZeroDivisionError:
                moeccl.torch.recover()
        else:
            raises(fails, "results are" if RANK == 1 else "rank 1")
            moeccl.torch.recover()
        assert time.monotonic() - began < PATIENCE
        step_of(route, 2)


@check
def errors_say_what_is_wrong():
    raises(lambda: moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, weights="mine"), "'combine', 'rows' or None")
    raises(lambda: moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float64), "float32, float16 or bfloat16")
    raises(lambda: moeccl.torch.Route(0, CHOICES, HIDDEN), "experts is 0")
    raises(lambda: moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, algorithm="ring"), "node, rank, flat")


@check
def passes_are_pooled():
    """300 passes of any number of tokens, of which nothing is left."""
    route = moeccl.torch.Route(EXPERTS, CHOICES, HIDDEN, dtype=torch.float32)
    for step in range(300):
        tokens, indices, weights, _ = routing_of(RANK, step % 13)
        with torch.no_grad():
            rows, handle = route.dispatch(tokens, indices, weights)
            factor = (weights * (indices >= 0)).sum(1, keepdim=True)
            near(route.combine(rows, handle), factor * tokens, "the output")
    gc.disable()
    tokens, indices, weights, _ = routing_of(RANK, 1)
    rows, handle = route.dispatch(tokens.float().requires_grad_(), indices, weights)
    output = route.combine(rows, handle)
    output.sum().backward()
    gone = weakref.ref(handle)
    del rows, handle, output
    gc.enable()
    assert gone() is None, "a pass keeps itself"


main(start)
