"""Halves of a route's pass that go on while the caller computes something else, forward and backward."""

import torch
from torch.autograd.function import once_differentiable


class _Started(torch.autograd.Function):
    """Its backward pass is the end of what _Awaited's has begun."""

    @staticmethod
    def forward(ctx, half, *given):
        ctx.half = half
        ctx.save_for_backward(half.ticket)
        return half.start(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        ctx.saved_tensors  # noqa: B018 - a checkpoint recomputes here on all ranks, whatever else is saved on each
        ctx.half.wait()
        gradients, ctx.half.gradients = ctx.half.gradients, None
        return None, *gradients


class _Awaited(torch.autograd.Function):

    @staticmethod
    def forward(ctx, half, *made):
        ctx.half = half
        # Saved here too: a recomputation must not stop before this.
        ctx.save_for_backward(half.ticket)
        half.wait()
        return tuple(each.view_as(each) for each in made)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        ctx.saved_tensors  # noqa: B018 - as above
        ctx.half.gradients = ctx.half.start_backward(*gradients)
        return None, *gradients


class Half:
    """start(*given) and start_backward(*gradients) enqueue, and return tensors that are there behind route.wait_beside()."""

    gradients = None

    def __init__(self, route, ticket, start, start_backward):
        self.route, self.ticket = route, ticket
        self.start, self.start_backward = start, start_backward

    def wait(self):
        self.route.wait_beside()

    def begin(self, *given):
        """What is made of the tensors, but for its contents."""
        return _Started.apply(self, *given)

    def end(self, *made):
        return _Awaited.apply(self, *made)


class Pending:
    """What Route.dispatch or Route.combine returns with async_op=True."""

    def __init__(self, end):
        self._end = end
        self._result = None

    def wait(self):
        """What the call returns without async_op. Its gradients go on beside, too: they begin where the backward pass comes to
        this, and are waited for where it comes to the call."""
        if self._end is not None:
            self._result, self._end = self._end(), None
        return self._result
