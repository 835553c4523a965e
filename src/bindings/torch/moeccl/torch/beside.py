"""Halves of a pass that go on while the caller computes something else, forward and backward."""

import functools

import torch

from .passes import NO_SECOND


def _once(backward):
    """In the place of torch's once_differentiable, which does not know that gradients depend on what a half keeps."""

    @functools.wraps(backward)
    def without_second(ctx, *gradients):
        with torch.no_grad():
            made = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return made
        refusal = torch._C._functions.DelayedError(NO_SECOND, len(made))
        return refusal(*(each if each is None else each.detach().requires_grad_() for each in made))

    return without_second


class _Started(torch.autograd.Function):
    """Its backward pass is the end of what _Awaited's has begun."""

    @staticmethod
    def forward(ctx, half, ticket, *given):
        ctx.half = half
        ctx.save_for_backward(ticket)
        return half.start(ticket, *given)

    @staticmethod
    @_once
    def backward(ctx, *gradients):
        ctx.saved_tensors  # noqa: B018 - a checkpoint recomputes here on all ranks, whatever else is saved on each
        ctx.half.wait()
        gradients, ctx.half.gradients = ctx.half.gradients, None
        return None, None, *ctx.half.finish_backward(*gradients)


class _Awaited(torch.autograd.Function):

    @staticmethod
    def forward(ctx, half, ticket, kept, *made):
        ctx.half = half
        # Saved here too: a recomputation must not stop before this.
        ctx.save_for_backward(ticket, kept)
        half.wait()
        # Views of what is given could not be changed in place.
        return tuple(each.detach() for each in made)

    @staticmethod
    @_once
    def backward(ctx, *gradients):
        ticket, kept = ctx.saved_tensors
        ctx.half.gradients = ctx.half.start_backward(ticket, kept, *gradients)
        return None, None, None, *gradients


class Half:
    """One exchange of a pass, and its gradients' exchange. The ticket keeps the pass; a half holds neither, so that a checkpoint
    drops them.

    owner            the layer or route, whose wait_beside() returns once all that was started is complete
    start            start(ticket, *given) enqueues, and returns tensors that are there behind wait_beside()
    start_backward   start_backward(ticket, kept, *gradients) likewise, and returns the gradients of what was given
    finish_backward  makes of these, once they are there, those that autograd gets
    """

    gradients = None

    def __init__(self, owner, start, start_backward, finish_backward=lambda *gradients: gradients):
        self.owner = owner
        self.start, self.start_backward, self.finish_backward = start, start_backward, finish_backward

    def wait(self):
        self.owner.wait_beside()

    def begin(self, ticket, *given):
        """What is made of the tensors, but for its contents."""
        return _Started.apply(self, ticket, *given)

    def end(self, ticket, kept, *made):
        """What begin() returned, with its contents. kept: a tensor that the gradients need, or None."""
        return _Awaited.apply(self, ticket, kept, *made)


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
