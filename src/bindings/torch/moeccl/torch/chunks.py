"""A layer's pass whose exchanges go on beside what the caller computes: shared experts, and experts of other chunks of tokens.

With three chunks, from left to right; a row's exchanges go on beside what stands below them:

    dispatch 0      dispatch 1      combine 0, dispatch 2   combine 1       combine 2
    shared experts  experts 0       experts 1               experts 2

The backward pass is the mirror image. Autograd runs nodes in the reverse order of the forward pass, on all ranks alike.
"""

import math

import torch

from .beside import Half

MOST = 64  # as of the library's own layers


def check_chunks(chunks, rank):
    if not isinstance(chunks, int) or isinstance(chunks, bool) or not 1 <= chunks <= MOST:
        raise ValueError(f"chunks is {chunks!r} on rank {rank} of the process group; it must be a whole number from 1 to {MOST}, "
                         "the same on all ranks")
    return chunks


def check_shared_experts(module, rank):
    if module is not None and not isinstance(module, torch.nn.Module):
        raise TypeError(f"shared_experts is a {type(module).__name__} on rank {rank} of the process group; it must be a "
                        "torch.nn.Module, which makes rows [n, M] of tokens [n, M], or None")
    return module


def check_with_chunks(chunks, learn, schedule, capacity_factor, capacity_groups):
    """Raises where a layer of several chunks cannot have these."""
    if chunks == 1:
        return
    if learn:
        raise ValueError(f"learn is True and chunks is {chunks}; a layer learns by passes that run alone. Leave learn out, or pass "
                         "chunks=1")
    if schedule == "S2":
        raise ValueError(f"schedule is 'S2' and chunks is {chunks}; S2 splits the capacity, of which chunks have none: what has "
                         "places is found before. Pass another schedule, or chunks=1")
    told = capacity_factor is not None and capacity_groups is not None
    if told and (not isinstance(capacity_groups, int) or capacity_groups < 1):
        raise ValueError(f"capacity_groups is {capacity_groups!r}; it must be a whole number above 0, or None for mp_size")


def sizes_of(count, chunks):
    """Of chunks of so many tokens. All ranks have as many chunks, some of which may be empty."""
    share, longer = divmod(count, chunks)
    return [share + (each < longer) for each in range(chunks)]


def with_places(indices, experts, factor, groups, mp_size, part):
    """The indices, with -1 for choices that have no place, and how many these are of the part-th of mp_size parts of the tokens.
    Places are those of include/moeccl/moe.h, Capacity."""
    count, choices = indices.shape
    unit = math.lcm(groups, mp_size)
    padded = -(-count // unit) * unit
    wanted = math.ceil(choices * factor * count / experts * (1 - 1e-12))
    places = min(padded, -(-wanted // unit) * unit) // groups
    # First choices come before second ones, in the order of tokens.
    flat = indices.t().reshape(-1)
    group = (torch.arange(count) // max(padded // groups, 1)).repeat(choices)
    key = (group * experts + flat).where(flat >= 0, groups * experts)
    order = key.argsort(stable=True)
    ordered = key[order]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - torch.searchsorted(ordered, ordered)
    kept = ((place < places) | (flat < 0)).view(choices, count).t()
    share = padded // mp_size
    return indices.where(kept, -1), int((~kept[part * share:(part + 1) * share]).sum())


def _version_of(tensor):
    """Another one once somebody has changed the tensor in place; None where torch counts no versions."""
    return None if tensor.is_inference() else tensor._version


class _Exchanges:
    """Those of a layer's passes, in halves."""

    def __init__(self, layer, dtype):
        self.layer, self.dtype = layer, dtype
        self.scale = layer.scale_of(dtype)

    def dispatch(self, ticket, tokens):
        """A function that waits for the rows, and returns them and their anchor."""
        layer, scale = self.layer, self.scale

        def start(ticket, tokens, leaf):
            rows, _ = layer.start_dispatch(ticket, tokens, True)
            return rows, rows.new_empty(0)

        def start_backward(ticket, kept, rows, anchor):
            tokens, _ = layer.start_dispatch_backward(ticket, rows, rows.new_empty(0), True)
            return tokens, rows.new_empty(0, dtype=torch.float32)

        half = Half(layer, start, start_backward, lambda tokens, leaf: (layer.times(tokens, 1 / scale), leaf))
        made = half.begin(ticket, tokens, layer._leaf)
        return lambda: half.end(ticket, None, *made)

    def combine(self, ticket, results, weights, anchor):
        """A function that waits for the output, and returns it."""
        layer, scale = self.layer, self.scale

        def start(ticket, results, weights, anchor):
            return layer.start_combine(ticket, results, True)

        def start_backward(ticket, results, output):
            rows, of_weights = layer.start_combine_backward(ticket, output, results, True)
            return rows, of_weights, output.new_empty(0)

        half = Half(layer, start, start_backward, lambda rows, weights, anchor: (layer.times(rows, scale), weights, anchor))
        made, version = half.begin(ticket, results, weights, anchor), _version_of(results)

        def end():
            output = half.end(ticket, results.detach(), made)[0]
            if _version_of(results) != version:
                raise RuntimeError("experts changed in place what they had made of another chunk's rows, while it travelled; each call "
                                   "must return memory of its own, or chunks be 1")
            return output

        return end


def run(layer, tokens, weights, passes):
    """The layer's output, with that of its shared experts. passes: one that has begun for each chunk of the tokens."""
    dtype = layer.type_of(tokens.dtype)
    exchanges, sizes = _Exchanges(layer, dtype), sizes_of(len(tokens), len(passes))
    weights = weights.to(torch.float64 if dtype == torch.float64 else torch.float32)
    parts, factors = ([each] if len(passes) == 1 else each.split(sizes) for each in (tokens.to(dtype), weights))
    tickets = [each.ticket() for each in passes]
    rows_of = exchanges.dispatch(tickets[0], parts[0])
    version = _version_of(tokens)
    shared = layer.run_shared_experts(tokens)
    if _version_of(tokens) != version:
        raise RuntimeError("shared_experts changed the tokens in place, while they travelled; its first module must not be in place")
    rows, anchor = rows_of()
    outputs, output_of = [], None
    for place, ticket in enumerate(tickets):
        last = place == len(tickets) - 1
        if not last:
            rows_of = exchanges.dispatch(tickets[place + 1], parts[place + 1])
        results = layer.results_of(rows.to(tokens.dtype), passes[place].begins()).to(dtype)
        # A wait is for all that is under way, so it comes before the next exchange.
        following = rows_of() if not last else (None, None)
        if output_of is not None:
            outputs.append(output_of())
        output_of = exchanges.combine(ticket, results, factors[place], anchor)
        rows, anchor = following
    outputs.append(output_of())
    output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).to(tokens.dtype)
    return output if shared is None else output + shared
