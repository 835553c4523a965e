"""A pass of a layer: operators with gradients around the caller's own experts, which torch.compile and torch.export take
as they are.

    rows, begins, ticket, anchor = torch.ops.moeccl.layer_begin(tokens, weights, leaf, indices, layer, training)
    output = torch.ops.moeccl.layer_end(results, anchor, ticket, layer, len(tokens))

layer is a number of this process' own. The ticket keeps the pass until nobody needs it. The anchor, an empty tensor, ties the
halves together where experts have no rows, and the leaf has every rank go through the backward pass.
"""

import itertools
import weakref

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from .. import _C

_numbers = itertools.count(1)
_owners = weakref.WeakValueDictionary()  # layers and routes


def number_of(owner):
    """By which operators find a layer or a route. What an operator does begins and ends with it."""
    number = next(_numbers)
    _owners[number] = owner
    return number


def owner_of(number):
    owner = _owners.get(number)
    if owner is None:
        raise RuntimeError("the layer or route of this operator is gone; what was compiled or exported goes on as long as its "
                           "module lives, in the same process")
    return owner


@custom_op("moeccl::layer_begin", mutates_args=())
def _begin(tokens: Tensor, weights: Tensor, leaf: Tensor, indices: Tensor, layer: int,
           training: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, begins, ticket = owner_of(layer).begin(tokens, indices, weights, training)
    return rows, begins, ticket, rows.new_empty(0)


@_begin.register_fake
def _(tokens, weights, leaf, indices, layer, training):
    module = owner_of(layer)
    rows = tokens.new_empty(get_ctx().new_dynamic_size(), tokens.shape[1], dtype=module.type_of(tokens.dtype))
    begins = indices.new_empty(module.num_local_experts + 1, dtype=torch.long)
    return rows, begins, indices.new_empty(2, dtype=torch.long), rows.new_empty(0)


@custom_op("moeccl::layer_begin_backward", mutates_args=())
def _begin_backward(rows: Tensor, anchor: Tensor, ticket: Tensor, layer: int, tokens: int,
                    choices: int) -> tuple[Tensor, Tensor, Tensor]:
    gradients = owner_of(layer).begin_backward(ticket, rows)
    return *gradients, rows.new_empty(0, dtype=torch.float32)


@_begin_backward.register_fake
def _(rows, anchor, ticket, layer, tokens, choices):
    return rows.new_empty(tokens, rows.shape[1]), rows.new_empty(tokens, choices), rows.new_empty(0, dtype=torch.float32)


def _keep_begin(ctx, inputs, output):
    tokens, weights, _, indices, ctx.layer, _ = inputs
    ctx.tokens, ctx.choices = indices.shape
    ctx.types = tokens.dtype, weights.dtype
    ctx.save_for_backward(output[2])


def _after_begin(ctx, rows, begins, ticket, anchor):
    tokens, weights, leaf = torch.ops.moeccl.layer_begin_backward(rows, anchor, *ctx.saved_tensors, ctx.layer, ctx.tokens,
                                                                  ctx.choices)
    return tokens.to(ctx.types[0]), weights.to(ctx.types[1]), leaf, None, None, None


_begin.register_autograd(_after_begin, setup_context=_keep_begin)


@custom_op("moeccl::layer_end", mutates_args=())
def _end(results: list[Tensor], anchor: Tensor, ticket: Tensor, layer: int, tokens: int) -> Tensor:
    return _C.end(ticket, results)


@_end.register_fake
def _(results, anchor, ticket, layer, tokens):
    return anchor.new_empty(tokens, results[0].shape[1])


@custom_op("moeccl::layer_end_backward", mutates_args=())
def _end_backward(output: Tensor, ticket: Tensor, layer: int, rows: int) -> tuple[Tensor, Tensor]:
    return owner_of(layer).end_backward(ticket, output), output.new_empty(0)


@_end_backward.register_fake
def _(output, ticket, layer, rows):
    return output.new_empty(rows, output.shape[1]), output.new_empty(0)


def _keep_end(ctx, inputs, output):
    results, _, ticket, ctx.layer, _ = inputs
    ctx.parts = [(each.shape[0], each.dtype) for each in results]
    # Saved here too: a recomputation must not stop before this.
    ctx.save_for_backward(ticket)


def _after_end(ctx, output):
    rows, anchor = torch.ops.moeccl.layer_end_backward(output, *ctx.saved_tensors, ctx.layer, sum(size for size, _ in ctx.parts))
    results = rows.split([size for size, _ in ctx.parts])
    return [each.to(dtype) for each, (_, dtype) in zip(results, ctx.parts)], anchor, None, None, None


_end.register_autograd(_after_end, setup_context=_keep_end)
