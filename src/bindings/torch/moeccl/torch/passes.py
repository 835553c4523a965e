"""A pass of a layer or a route: operators with gradients, which torch.compile and torch.export take as they are.

    ticket, begins, rank_counts = torch.ops.moeccl.route_begin(tokens, indices, weights, training, owner)
    experts = torch.ops.moeccl.route_experts(begins)
    rows, row_weights, anchor = torch.ops.moeccl.route_dispatch(tokens, weights, leaf, ticket, experts, owner)
    output = torch.ops.moeccl.route_combine(results, weights, anchor, ticket, owner, len(tokens))

owner is a number of this process' own. The ticket keeps the pass until nobody needs it. Weights are given where they are
multiplied by. The anchor, an empty tensor, ties the halves together where experts have no rows, and the leaf has every rank go
through the backward pass.
"""

import itertools
import weakref

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.library import custom_op, get_ctx

from .. import _C

_numbers = itertools.count(1)
_owners = weakref.WeakValueDictionary()


def check_wire(wire):
    if wire not in (None, torch.float8_e4m3fn, torch.float8_e5m2):
        raise ValueError(f"wire is {wire}; it must be torch.float8_e4m3fn, torch.float8_e5m2 or None")
    return wire


def refuse_transforms():
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError("torch.func's transforms (grad, vmap, jvp, ...) do not reach through an exchange between ranks; call "
                                  "the layer outside of them, and backward()")


class Owner:
    """A layer or a route. Beside what is here it has num_local_experts, grid, type_of(dtype) of its rows, revoking(), and
    begin(tokens, indices, weights, training), which makes a pass."""

    rows_by_token = False

    @property
    def num_lists(self):
        """Of rows, by expert."""
        return 1 if self.rows_by_token else self.num_local_experts

    def _live(self):
        """What operators find it by, and no copy shares."""
        self.id = next(_numbers)
        _owners[self.id] = self
        # Whatever needs gradients on this rank, all ranks go through the backward pass.
        self._leaf = torch.empty(0, device="cpu", requires_grad=True)

    # The operators' own parts, but for what is empty. beside: they go on beside the caller.

    def start_dispatch(self, ticket, tokens, beside=False):
        with self.revoking():
            its_pass = _C.route_pass(ticket)
            return its_pass.dispatch(tokens, beside), its_pass.row_weights()

    def start_combine(self, ticket, results, beside=False):
        with self.revoking():
            return _C.route_pass(ticket).combine(results, beside)

    def start_combine_backward(self, ticket, output, results, beside=False):
        with self.revoking():
            return _C.route_pass(ticket).combine_backward(output, results, beside)

    def start_dispatch_backward(self, ticket, rows, row_weights, beside=False):
        with self.revoking():
            return _C.route_pass(ticket).dispatch_backward(rows, row_weights, beside)


NO_SECOND = ("gradients of gradients (create_graph=True) do not reach through an exchange between ranks; leave the layer or route "
             "out of what they are made of")


def _refuse_second(*_):
    """In the place of gradients of gradients."""
    raise RuntimeError(NO_SECOND)


def _owner_of(number):
    owner = _owners.get(number)
    if owner is None:
        raise RuntimeError("the layer or route of this operator is gone; what was compiled or exported goes on as long as its "
                           "module lives, in the same process")
    return owner


def _of_weights(like, *shape):
    return like.new_empty(shape, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32)


@custom_op("moeccl::route_begin", mutates_args=())
def _begin(tokens: Tensor, indices: Tensor | None, weights: Tensor | None, training: bool,
           owner: int) -> tuple[Tensor, Tensor, Tensor]:
    begun = _owner_of(owner).begin(tokens, indices, weights, training)
    return begun.ticket(), begun.begins(), begun.counts()


@_begin.register_fake
def _(tokens, indices, weights, training, owner):
    it = _owner_of(owner)

    def made(*shape):
        return tokens.new_empty(shape, dtype=torch.long)

    return made(2), made(it.num_lists + 1), made(it.num_lists, it.grid.size)


@custom_op("moeccl::route_experts", mutates_args=())
def _experts(begins: Tensor) -> Tensor:
    return torch.repeat_interleave(begins.diff())


@_experts.register_fake
def _(begins):
    return begins.new_empty(get_ctx().new_dynamic_size())


@custom_op("moeccl::route_row_experts", mutates_args=())
def _row_experts(ticket: Tensor, rows: Tensor, owner: int) -> Tensor:
    return _C.route_pass(ticket).row_experts()


@_row_experts.register_fake
def _(ticket, rows, owner):
    return rows.new_empty(rows.shape[0], _owner_of(owner).top_k, dtype=torch.int32)


@custom_op("moeccl::route_dispatch", mutates_args=())
def _dispatch(tokens: Tensor, weights: Tensor | None, leaf: Tensor, ticket: Tensor, experts: Tensor,
              owner: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, row_weights = _owner_of(owner).start_dispatch(ticket, tokens)
    return rows, row_weights, rows.new_empty(0)


@_dispatch.register_fake
def _(tokens, weights, leaf, ticket, experts, owner):
    it = _owner_of(owner)
    rows = tokens.new_empty(experts.shape[0], tokens.shape[1], dtype=it.type_of(tokens.dtype))
    choices = (it.top_k,) if it.rows_by_token else ()
    row_weights = rows.new_empty(0 if weights is None else experts.shape[0], *choices, dtype=torch.float32)
    return rows, row_weights, rows.new_empty(0)


@custom_op("moeccl::route_dispatch_backward", mutates_args=())
def _dispatch_backward(rows: Tensor, row_weights: Tensor, anchor: Tensor, ticket: Tensor, owner: int, tokens: int,
                       choices: int) -> tuple[Tensor, Tensor, Tensor]:
    return *_owner_of(owner).start_dispatch_backward(ticket, rows, row_weights), rows.new_empty(0, dtype=torch.float32)


@_dispatch_backward.register_fake
def _(rows, row_weights, anchor, ticket, owner, tokens, choices):
    return rows.new_empty(tokens, rows.shape[1]), _of_weights(rows, tokens, choices), rows.new_empty(0, dtype=torch.float32)


def _keep_types(ctx, given, weights):
    ctx.dtype, ctx.choices = given.dtype, 0 if weights is None else weights.shape[1]
    ctx.weights_dtype = None if weights is None else weights.dtype


def _of_their_types(ctx, given, weights):
    return given.to(ctx.dtype), None if ctx.weights_dtype is None else weights.to(ctx.weights_dtype)


def _keep_dispatch(ctx, inputs, output):
    tokens, weights, _, ticket, _, ctx.owner = inputs
    ctx.tokens = tokens.shape[0]
    _keep_types(ctx, tokens, weights)
    ctx.save_for_backward(ticket)


def _after_dispatch(ctx, rows, row_weights, anchor):
    *gradients, leaf = torch.ops.moeccl.route_dispatch_backward(rows, row_weights, anchor, *ctx.saved_tensors, ctx.owner,
                                                                ctx.tokens, ctx.choices)
    return *_of_their_types(ctx, *gradients), leaf, None, None, None


_dispatch.register_autograd(_after_dispatch, setup_context=_keep_dispatch)
_dispatch_backward.register_autograd(_refuse_second)


@custom_op("moeccl::route_combine", mutates_args=())
def _combine(results: Tensor, weights: Tensor | None, anchor: Tensor, ticket: Tensor, owner: int, tokens: int) -> Tensor:
    return _owner_of(owner).start_combine(ticket, results)


@_combine.register_fake
def _(results, weights, anchor, ticket, owner, tokens):
    return anchor.new_empty(tokens, results.shape[1])


@custom_op("moeccl::route_combine_backward", mutates_args=())
def _combine_backward(output: Tensor, results: Tensor, ticket: Tensor, owner: int, rows: int,
                      choices: int) -> tuple[Tensor, Tensor, Tensor]:
    return *_owner_of(owner).start_combine_backward(ticket, output, results), output.new_empty(0)


@_combine_backward.register_fake
def _(output, results, ticket, owner, rows, choices):
    return output.new_empty(rows, output.shape[1]), _of_weights(output, output.shape[0], choices), output.new_empty(0)


def _keep_combine(ctx, inputs, output):
    results, weights, anchor, ticket, ctx.owner, _ = inputs
    ctx.rows = results.shape[0]
    _keep_types(ctx, results, weights)
    # Of all: a recomputation must not stop before this.
    ctx.save_for_backward(ticket, anchor if weights is None else results)


def _after_combine(ctx, output):
    ticket, results = ctx.saved_tensors
    *gradients, anchor = torch.ops.moeccl.route_combine_backward(output, results, ticket, ctx.owner, ctx.rows, ctx.choices)
    return *_of_their_types(ctx, *gradients), anchor, None, None, None


_combine.register_autograd(_after_combine, setup_context=_keep_combine)
_combine_backward.register_autograd(_refuse_second)

# Other ranks wait for each of them, also where what it returns here is empty and of no use.
for _name in ("begin", "dispatch", "dispatch_backward", "combine", "combine_backward"):
    _register_effectful_op(getattr(torch.ops.moeccl, f"route_{_name}").default, _EffectType.ORDERED)
