"""A pass: two functions of autograd around the caller's own experts."""

import torch
from torch.autograd.function import once_differentiable

from .. import _C


class Begin(torch.autograd.Function):
    """Tokens and their routing to the rows of this rank's experts."""

    @staticmethod
    def forward(ctx, tokens, weights, anchor, indices, layer, module, scale):
        ticket, rows, begins = layer.begin(tokens, indices, weights)
        ctx.save_for_backward(ticket)
        ctx.module, ctx.scale = module, scale
        ctx.mark_non_differentiable(ticket)
        return rows, tokens.new_empty(0), ticket, begins

    @staticmethod
    @once_differentiable
    def backward(ctx, rows, *_):
        (ticket,) = ctx.saved_tensors
        with ctx.module.revoking():
            tokens, weights = _C.begin_backward(ticket, rows, 1 / ctx.scale)
        ctx.module._end_backward(ticket)
        return tokens, weights, None, None, None, None, None


class End(torch.autograd.Function):
    """What the experts made of the rows to the output."""

    @staticmethod
    def forward(ctx, anchor, ticket, module, leaf, number, scale, *results):
        # Saved here too: a recomputation must not stop before this.
        ctx.save_for_backward(ticket)
        ctx.module, ctx.leaf, ctx.number, ctx.scale = module, leaf, number, scale
        ctx.parts = [(len(each), each.dtype) for each in results]
        return _C.end(ticket, list(results))

    @staticmethod
    @once_differentiable
    def backward(ctx, output):
        (ticket,) = ctx.saved_tensors
        ctx.module._begin_backward(ctx.leaf, ctx.number)
        with ctx.module.revoking():
            rows = _C.end_backward(ticket, output, ctx.scale)
        ctx.module.half_done[ticket.item()] = ticket, rows.shape
        gradients = rows.split([rows for rows, _ in ctx.parts])
        gradients = [each.to(dtype) for each, (_, dtype) in zip(gradients, ctx.parts)]
        return (output.new_zeros(0), None, None, None, None, None, *gradients)
