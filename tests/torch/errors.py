"""One rank's own error reaches all ranks, at the same step and within seconds; then the layer works on.

    torchrun --nproc-per-node 4 tests/torch/errors.py [CHECK...]
"""

import itertools
import os
import time

import torch
import torch.distributed as dist
from expert_models import EXPERTS, Expert, Model, Whole, local_experts, tokens_of
from harness import check, main, raises
from torch.utils.checkpoint import checkpoint

import moeccl.torch

PATIENCE = 2.0  # seconds; without a word from the other rank it is minutes


def require_soon(began, text):
    """A machine that is busy with something else takes longer."""
    took, load = time.monotonic() - began, os.getloadavg()[0]
    calm = load < WORLD + os.cpu_count()
    assert took < (PATIENCE if calm else 10 * PATIENCE), f"{text}: it took {took} s, at a load of {load}"


def soon(call, *parts):
    began = time.monotonic()
    text = raises(call, *parts)
    require_soon(began, text)
    return text


def layer_of(**options):
    sizes = {name: each for name, each in options.items() if name == "ep_size"}
    return Model(torch.nn.ModuleList(local_experts(sizes, Expert)), **options)


def routed(step):
    indices = (torch.arange(20)[:, None] * 3 + torch.arange(2) + RANK + step) % EXPERTS
    return tokens_of(RANK, step), indices, torch.full((20, 2), 0.5, dtype=torch.float64)


def wrong_calls():
    """What one rank sees by itself, and part of what is said of it."""
    tokens, indices, weights = routed(0)
    twice = indices.clone()
    twice[5] = 3
    return (((tokens, indices, weights[:7]), "weights (7, 2)"), ((tokens, indices + EXPERTS, weights), f"to {EXPERTS - 1}"),
            ((tokens, indices - 2 * EXPERTS, weights), "from 0"), ((tokens, twice, weights), "expert 3 twice"),
            ((tokens, indices.double(), weights), "indices are torch.float64"), ((tokens, indices, None), "weights"),
            ((tokens, indices > 0, weights), "indices are torch.bool"), ((tokens, indices.tolist(), weights), "indices are a list"),
            ((tokens, indices, weights.tolist()), "weights are a list"), ((None, indices, weights), "tokens are a NoneType"),
            ((torch.tensor(1.0), indices, weights), "tokens are of no dimension"))


@check
def an_error_before_anything_is_sent():
    for options in ({}, {"ep_size": 2}, {"mp_size": 2}):
        if options.get("mp_size"):
            model = Model(torch.nn.ModuleList(local_experts(options, Expert)), **options)
            raises_once = ((tokens_of(0, 0), torch.full((20, 2), EXPERTS), torch.ones(20, 2)), "from 0")
            cases = (raises_once,)
        else:
            model, cases = layer_of(**options), wrong_calls()
        for failing, (call, said) in enumerate(cases):
            failing %= WORLD
            given = call if RANK == failing else routed(1)
            text = soon(lambda: model.layer(*given), said)
            assert (f"rank {failing} of the layer's ranks" in text) == (RANK != failing), text
            # The next step is the same on all ranks.
            step = 7 + failing
            output = model(tokens_of(RANK // options.get("mp_size", 1), step))
            assert output.isfinite().all()
            output.sum().backward()


@check
def a_gate_that_raises():
    model = layer_of()
    broken = model.gate.forward

    def raise_once(tokens):
        raise ZeroDivisionError("a gate of its own") if RANK == 1 else None

    if RANK == 1:
        model.gate.forward = raise_once
    try:
        model(tokens_of(RANK, 0))
        raise AssertionError("no error")
    except ZeroDivisionError:
        assert RANK == 1
    except RuntimeError as error:
        assert RANK != 1 and "rank 1" in str(error) and "a gate of its own" in str(error), error
    model.gate.forward = broken
    model(tokens_of(RANK, 0))


@check
def passes_that_do_not_match():
    first, second = layer_of(), layer_of()
    numbers = first.layer.number, second.layer.number
    # Two layers in another order on one rank.
    one, other = (second, first) if RANK == 2 else (first, second)
    text = soon(lambda: one(tokens_of(RANK, 0)), "rank 2", "different orders")
    assert all(f"layer {each} " in text for each in numbers), text
    # A backward pass that one rank leaves out.
    first, second = layer_of(), layer_of()
    outputs = [first(tokens_of(RANK, step)) for step in range(2)]
    if RANK == 1:
        soon(lambda: second(tokens_of(RANK, 2)), "rank 1", "the backward pass", "a forward pass")
    else:
        soon(lambda: outputs[0].sum().backward(), "rank 1", "the backward pass", "a forward pass")
    # Backward passes in another order.
    first = layer_of()
    outputs = [first(tokens_of(RANK, step)) for step in range(2)]
    soon(lambda: outputs[RANK == 3].sum().backward(), "rank 3", "backward pass behind step")
    second(tokens_of(RANK, 3)).sum().backward()


@check
def a_recomputation_that_one_rank_refuses():
    """A checkpoint finds other shapes on one rank, before the layer is computed again, or behind it. In float32 ranks tell each
    other no counts again."""
    for dtype, behind in itertools.product((torch.float64, torch.float32), (False, True)):
        model, calls = layer_of().to(dtype), [0]

        def part(tokens):
            calls[0] += 1
            other = RANK == 1 and calls[0] == 2
            if other and not behind:
                raise ZeroDivisionError("a checkpoint of its own")
            shape = torch.ones(3 if other else 2, dtype=dtype, requires_grad=True)
            return model(tokens) + shape.sin().sum()

        output = checkpoint(part, tokens_of(RANK, 0).to(dtype), use_reentrant=False)
        if RANK != 1:
            soon(lambda: output.sum().backward(), "rank 1")
        else:
            soon_of_any(lambda: output.sum().backward())
            said = ["not finished"] if behind and dtype == torch.float32 else ["rank 1", "a forward pass"]
            soon(lambda: model(tokens_of(RANK, 1).to(dtype)), *said)
        recovered(model.double(), 2)


@check
def a_recomputation_that_routes_otherwise():
    """On one rank, which all are told before anything is sent; so they go on."""
    model, calls = layer_of().float(), [0]

    def part(tokens):
        calls[0] += 1
        return model(tokens.flip(0) if RANK == 2 and calls[0] == 2 else tokens)

    output = checkpoint(part, tokens_of(RANK, 0).float(), use_reentrant=False)
    text = soon(lambda: output.sum().backward(), "computes the layer again", "other experts")
    assert ("rank 2 of the layer's ranks" in text) == (RANK != 2), text
    for step in range(2):
        checkpoint(model, tokens_of(RANK, step).float(), use_reentrant=False).sum().backward()


@check
def replicas_too():
    """Ranks that share no experts with the failing one, but gradients, are told at the same step."""
    model = layer_of(ep_size=2)
    tokens, indices, weights = routed(0)
    soon(lambda: model.layer(tokens, indices + EXPERTS * (RANK == 0), weights), "from 0")
    model.layer(tokens, indices, weights).sum().backward()


def recovered(model, step):
    """All ranks go on, with the same model, and train as one process does."""
    moeccl.torch.recover()
    model.zero_grad()
    whole = Whole(torch.nn.ModuleList(Expert(each) for each in range(EXPERTS)))
    output = model(tokens_of(RANK, step))
    assert torch.allclose(output, whole(tokens_of(RANK, step)))
    output.square().mean().backward()
    for batch in range(WORLD):
        (whole(tokens_of(batch, step)).square().mean() / WORLD).backward()
    experts = model.layer.experts
    for number, expert in experts.named_children():
        assert torch.allclose(expert.first.grad, whole.experts[int(number)].first.grad)


class Failing(Expert):
    """An expert with an error of its own."""

    kind = None

    def forward(self, rows):
        results = super().forward(rows)
        if self.kind == "raises":
            raise ZeroDivisionError("an expert of its own")
        if self.kind == "one row too few":
            return results[1:]
        if self.kind == "raises backward" and results.requires_grad:
            results.register_hook(self.raise_backward)
        return results

    def raise_backward(self, gradient):
        raise ZeroDivisionError("a hook of its own")


@check
def an_error_in_the_middle_of_a_pass():
    for options in ({}, {"ep_size": 2}):
        model = Model(torch.nn.ModuleList(local_experts(options, Failing)), **options)
        for step, (kind, said) in enumerate((("raises", "an expert of its own"), ("one row too few", "results are"))):
            model.layer.experts[0].kind = kind if RANK == 1 else None
            text = soon_of_any(lambda: model(tokens_of(RANK, step)).sum().backward())
            assert said in text, text
            model.layer.experts[0].kind = None
            recovered(model, step)


def soon_of_any(call):
    """The text of whichever error comes."""
    began = time.monotonic()
    try:
        call()
    except (RuntimeError, ValueError, ZeroDivisionError) as error:
        require_soon(began, error)
        return str(error)
    raise AssertionError("no error")


@check
def an_error_in_a_backward_pass():
    """The rank that catches it, and goes on, tells the others, who wait in it."""
    for options in ({}, {"ep_size": 2}):
        model = Model(torch.nn.ModuleList(local_experts(options, Failing)), **options)
        model.layer.experts[0].kind = "raises backward" if RANK == 1 else None
        output = model(tokens_of(RANK, 0))
        text = soon_of_any(output.sum().backward)
        if RANK == 1:
            assert "a hook of its own" in text, text
            text = soon_of_any(lambda: model(tokens_of(RANK, 1)))
        assert "not finished" in text, text
        model.layer.experts[0].kind = None
        recovered(model, 2)


@check
def an_error_where_ranks_tell_each_other_nothing():
    model = layer_of(tokens=20)
    longer = torch.cat([tokens_of(RANK, 0)] * 2) if RANK == 2 else tokens_of(RANK, 0)
    text = soon_of_any(lambda: model(longer))
    assert "there are 40 tokens" in text and ("rank 2" in text or RANK == 2), text
    recovered(model, 1)


@check
def a_collective_of_one_rank_against_a_layer():
    """Neither returns without the other ranks. The group's calls fail then, too, so it is made anew each time."""
    calls = {"barrier": dist.barrier, "all_reduce": lambda: dist.all_reduce(torch.ones(2)),
             "asynchronous": lambda: dist.all_reduce(torch.ones(2), async_op=True).wait()}
    for turn, (name, call) in enumerate(calls.items()):
        model = layer_of()
        began = time.monotonic()
        output = model(tokens_of(RANK, 0)) if turn == 2 else None
        try:
            if RANK == 1:
                call()
            elif turn == 2:
                output.sum().backward()
            else:
                model(tokens_of(RANK, 0))
            raise AssertionError("no error")
        except RuntimeError as error:
            text = str(error)
        require_soon(began, text)
        assert ("BARRIER" if name == "barrier" else "ALLREDUCE") in text and "rank 1 in" in text, text
        assert f"the {'backward' if turn == 2 else 'forward'} pass" in text.replace("a forward", "the forward"), text
        assert f"of layer {model.layer.number}" in text and "rank 0, 2" in text, text
        dist.destroy_process_group()
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, is_master=False)
        dist.init_process_group("cpu:moeccl", store=dist.PrefixStore(f"anew {turn}", store), rank=RANK, world_size=WORLD)
    # A rank that only comes later is waited for.
    model = layer_of()
    if RANK == 1:
        time.sleep(2.5)
    model(tokens_of(RANK, 0)).sum().backward()
    if RANK == 1:
        time.sleep(2.5)
    dist.barrier()


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    main(start)
