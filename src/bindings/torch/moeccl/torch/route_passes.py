"""A pass of a route: operators with gradients, which torch.compile and torch.export take as they are.

    ticket, begins, rank_counts, experts = torch.ops.moeccl.route_begin(tokens, indices, weights, route)
    rows, row_weights, anchor = torch.ops.moeccl.route_dispatch(tokens, weights, leaf, ticket, experts, route)
    output = torch.ops.moeccl.route_combine(results, weights, anchor, ticket, route, len(tokens))

As in passes.py: route is a number, the ticket keeps the pass, the anchor ties its halves together, and the leaf has every
rank go through the backward pass.
"""

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from .. import _C
from .passes import owner_of


@custom_op("moeccl::route_begin", mutates_args=())
def _begin(tokens: Tensor, indices: Tensor | None, weights: Tensor | None, route: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    begun = owner_of(route).begin(tokens, indices, weights)
    begins = begun.begins()
    experts = torch.repeat_interleave(begins.diff(), output_size=begun.rows())
    return begun.ticket(), begins, begun.counts(), experts


@_begin.register_fake
def _(tokens, indices, weights, route):
    it = owner_of(route)

    def made(*shape):
        return tokens.new_empty(shape, dtype=torch.long)

    return made(2), made(it.num_local_experts + 1), made(it.num_local_experts, it.grid.size), made(get_ctx().new_dynamic_size())


@custom_op("moeccl::route_dispatch", mutates_args=())
def _dispatch(tokens: Tensor, weights: Tensor | None, leaf: Tensor, ticket: Tensor, experts: Tensor,
              route: int) -> tuple[Tensor, Tensor, Tensor]:
    begun = _C.route_pass(ticket)
    with owner_of(route).revoking():
        rows = begun.dispatch(tokens)
    return rows, begun.row_weights(), rows.new_empty(0)


@_dispatch.register_fake
def _(tokens, weights, leaf, ticket, experts, route):
    it = owner_of(route)
    rows = tokens.new_empty(experts.shape[0], it.hidden, dtype=it.dtype)
    travel = experts.shape[0] if it.weights == "rows" else 0
    return rows, tokens.new_empty(travel, dtype=torch.float32), rows.new_empty(0)


@custom_op("moeccl::route_dispatch_backward", mutates_args=())
def _dispatch_backward(rows: Tensor, row_weights: Tensor, anchor: Tensor, ticket: Tensor, route: int,
                       tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    with owner_of(route).revoking():
        gradients, of_weights = _C.route_pass(ticket).dispatch_backward(rows, row_weights)
    leaf = rows.new_empty(0, dtype=torch.float32)
    return gradients, torch.empty(0) if of_weights is None else of_weights, leaf


@_dispatch_backward.register_fake
def _(rows, row_weights, anchor, ticket, route, tokens):
    it = owner_of(route)
    of_weights = (tokens, it.top_k) if it.weights == "rows" else (0,)
    return (rows.new_empty(tokens, it.hidden, dtype=it.dtype), rows.new_empty(of_weights, dtype=torch.float32),
            rows.new_empty(0, dtype=torch.float32))


def _keep_dispatch(ctx, inputs, output):
    tokens, weights, _, ticket, _, ctx.route = inputs
    ctx.tokens, ctx.dtype, ctx.weighs = tokens.shape[0], tokens.dtype, weights is not None
    ctx.save_for_backward(ticket)


def _after_dispatch(ctx, rows, row_weights, anchor):
    tokens, weights, leaf = torch.ops.moeccl.route_dispatch_backward(rows, row_weights, anchor, *ctx.saved_tensors, ctx.route,
                                                                     ctx.tokens)
    return tokens.to(ctx.dtype), weights if ctx.weighs else None, leaf, None, None, None


_dispatch.register_autograd(_after_dispatch, setup_context=_keep_dispatch)


@custom_op("moeccl::route_combine", mutates_args=())
def _combine(results: Tensor, weights: Tensor | None, anchor: Tensor, ticket: Tensor, route: int, tokens: int) -> Tensor:
    with owner_of(route).revoking():
        return _C.route_pass(ticket).combine(results)


@_combine.register_fake
def _(results, weights, anchor, ticket, route, tokens):
    return anchor.new_empty(tokens, results.shape[1])


@custom_op("moeccl::route_combine_backward", mutates_args=())
def _combine_backward(output: Tensor, results: Tensor, ticket: Tensor, route: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    with owner_of(route).revoking():
        gradients, of_weights = _C.route_pass(ticket).combine_backward(output, results)
    return gradients, torch.empty(0) if of_weights is None else of_weights, gradients.new_empty(0)


@_combine_backward.register_fake
def _(output, results, ticket, route, rows):
    it = owner_of(route)
    of_weights = (output.shape[0], it.top_k) if it.weights == "combine" else (0,)
    gradients = output.new_empty(rows, it.hidden, dtype=it.dtype)
    return gradients, output.new_empty(of_weights, dtype=torch.float32), gradients.new_empty(0)


def _keep_combine(ctx, inputs, output):
    results, weights, anchor, ticket, ctx.route, _ = inputs
    ctx.rows, ctx.dtype, ctx.weighs = results.shape[0], results.dtype, weights is not None
    # Of all routes: a recomputation must not stop before this.
    ctx.save_for_backward(ticket, results if ctx.weighs else anchor)


def _after_combine(ctx, output):
    ticket, results = ctx.saved_tensors
    results, weights, anchor = torch.ops.moeccl.route_combine_backward(output, results, ticket, ctx.route, ctx.rows)
    return results.to(ctx.dtype), weights if ctx.weighs else None, anchor, None, None, None


_combine.register_autograd(_after_combine, setup_context=_keep_combine)
