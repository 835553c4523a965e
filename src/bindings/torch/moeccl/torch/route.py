"""Rows to experts and back, on tensors, with gradients."""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from .. import _C
from .grid import grid_of

WEIGHTS = {"combine": _C.RouteWeights.combine, "rows": _C.RouteWeights.rows, None: _C.RouteWeights.none}


class _Dispatch(torch.autograd.Function):
    """Keeps the pass but not its handle, which keeps what this makes."""

    @staticmethod
    def forward(ctx, tokens, weights, leaf, route, its_pass):
        ctx.route, ctx.its_pass, ctx.dtype = route, its_pass, tokens.dtype
        rows = its_pass.dispatch(tokens)
        return rows, its_pass.row_weights(), rows.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, rows, weights, anchor):
        with ctx.route._revoking():
            tokens, weights = ctx.its_pass.dispatch_backward(rows, weights)
        return tokens.to(ctx.dtype), weights, None, None, None


class _Combine(torch.autograd.Function):

    @staticmethod
    def forward(ctx, results, weights, anchor, route, its_pass):
        ctx.route, ctx.its_pass, ctx.dtype = route, its_pass, results.dtype
        # Of all routes: a recomputation must not stop before this.
        ctx.save_for_backward(results if route.weights == "combine" else anchor)
        return its_pass.combine(results)

    @staticmethod
    @once_differentiable
    def backward(ctx, output):
        (results,) = ctx.saved_tensors
        with ctx.route._revoking():
            results, weights = ctx.its_pass.combine_backward(output, results)
        return results.to(ctx.dtype), weights, output.new_zeros(0), None, None


class Handle:
    """A routing whose tokens are on their way, as Route.dispatch returns it. While it is there, its layout is kept.

    rows         how many come to this rank
    counts       int64 [local experts]: how many of them each expert gets; rows are ordered by expert
    offsets      int32 [local experts]: where each expert's rows end, as torch's grouped_mm takes it
    rank_counts  int64 [local experts, ranks]: how many come from each rank; of an expert, rows are ordered by it
    row_weights  float32 [rows], with gradients, of a route with weights="rows"
    algorithm    that brings the rows
    """

    def __init__(self, route, its_pass, weights):
        self._route, self._pass, self._weights = route, its_pass, weights
        self._anchor = self.row_weights = None
        self.rows, self.algorithm = its_pass.rows(), its_pass.algorithm()
        begins = its_pass.begins()
        self.counts, self.offsets = begins.diff(), begins[1:].int()
        self.rank_counts = its_pass.counts()


class Route:
    """Brings each token to the experts that it chose, on whatever rank they are, and what they made of it back.

        route = moeccl.torch.Route(num_experts=64, top_k=8, hidden=2048)
        rows, handle = route.dispatch(tokens, indices, weights)
        output = route.combine(experts(rows, handle.offsets), handle)

    Collective over the process group, as dispatch, combine and their gradients are: all ranks call them in the same order,
    with any number of tokens, none too. Where one rank's own arguments are wrong, or its experts raise, all ranks fail.

    num_experts  of all ranks; each ep_size-th part of the ranks has consecutive ones, first_expert to
                 first_expert + num_local_experts - 1
    top_k        experts of a token
    hidden       elements of a token
    dtype        of tokens and rows: torch.float32, float16 or bfloat16. Sums are made in float32
    weights      "combine": combine multiplies by them. "rows": they travel, handle.row_weights has each row's, and the
                 caller multiplies. None: there are none. They are float32
    group        the default one where None. Its backend may be another; tensors are on CPUs
    ep_size, esp_size, order   as in moeccl.torch.MoE
    algorithm    "node", "rank" or "flat" (include/moeccl/route.h); None: the fastest as predicted, for each dispatch
    """

    def __init__(self, num_experts, top_k, hidden, *, dtype=torch.bfloat16, weights="combine", group=None, ep_size=None,
                 esp_size=1, order="esp", algorithm=None):
        if weights not in WEIGHTS:
            raise ValueError(f"weights is {weights!r}; it must be 'combine', 'rows' or None")
        self.grid = grid_of(group, 1, ep_size, esp_size, order)
        self.num_experts, self.top_k, self.hidden = num_experts, top_k, hidden
        self.dtype, self.weights, self.algorithm = dtype, weights, algorithm
        share, longer = divmod(num_experts, self.grid.ep_size)
        self.first_expert = self.grid.ep_rank * share + min(self.grid.ep_rank, longer)
        self.num_local_experts = share + (self.grid.ep_rank < longer)
        self._on = self._made = None
        self._connect()

    def _connect(self):
        """Anew where moeccl.torch.recover() has made the grid anew."""
        if self._on is not self.grid.handle:
            self._on = self.grid.handle
            self._made = _C.Route(self._on, self.num_experts, self.top_k, self.hidden, self.dtype, WEIGHTS[self.weights],
                                  self.algorithm or "")
        return self._made

    @torch.compiler.disable
    def dispatch(self, tokens, indices=None, weights=None, handle=None):
        """rows [rows, hidden] of this rank's experts, ordered by expert; and the handle for combine.

        tokens [n, hidden], indices [n, k] (-1: no expert), weights [n, k]. With a handle instead of indices and weights,
        tokens go as those that it was made for: ranks exchange rows and nothing else.
        """
        if handle is None:
            handle = self._begin(tokens, indices, weights)
        with self._revoking():
            self._require_own(handle)
            given = handle._weights if self.weights == "rows" else None
            # Whatever needs gradients on this rank, all ranks go through the backward pass.
            leaf = torch.empty(0, requires_grad=torch.is_grad_enabled())
            rows, row_weights, anchor = _Dispatch.apply(tokens, given, leaf, self, handle._pass)
        handle._anchor = anchor if handle._anchor is None else handle._anchor + anchor
        if self.weights == "rows":
            handle.row_weights = row_weights
        return rows, handle

    @torch.compiler.disable
    def combine(self, results, handle):
        """Output [n, hidden]: of each token the sum of what its experts made of it, zeros for a token without any."""
        with self._revoking():
            self._require_own(handle)
            weights = handle._weights if self.weights == "combine" else None
            return _Combine.apply(results, weights, handle._anchor, self, handle._pass)

    def _begin(self, tokens, indices, weights):
        made = self._connect()
        try:
            indices, weights = self._checked(tokens, indices, weights)
        except Exception as error:
            made.tell_error(f"rank {self.grid.group.rank()} of the process group: {type(error).__name__}: {error}")
            raise
        try:
            begun = made.begin(indices, weights.detach() if weights is not None else None)
        except (dist.DistBackendError, ValueError):  # of all ranks
            raise
        except BaseException as error:  # of this one, such as a KeyboardInterrupt
            self.grid.revoke_for(error, "a route")
            raise
        return Handle(self, begun, weights)

    def _checked(self, tokens, indices, weights):
        if indices is None or (weights is None) != (self.weights is None):
            raise ValueError("dispatch takes tokens, indices" + (" and weights" if self.weights is not None else ", no weights")
                             + ", or tokens and a handle")
        if tokens.dim() != 2 or tokens.shape[1] != self.hidden or tokens.device.type != "cpu":
            raise ValueError(f"tokens are {tuple(tokens.shape)} on {tokens.device}; they must be [n, {self.hidden}] on the CPU")
        shape = (len(tokens), self.top_k)
        for name, each in (("indices", indices), ("weights", weights)):
            if each is not None and tuple(each.shape) != shape:
                raise ValueError(f"{name} are {tuple(each.shape)}; they must be {shape}")
        if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise ValueError(f"indices are {indices.dtype}; they must be whole numbers")
        if indices.numel() and not (-1 <= indices.min() and indices.max() < self.num_experts):
            wrong = indices[(indices < -1) | (indices >= self.num_experts)][0].item()
            raise ValueError(f"indices have {wrong}; they must be from 0 to {self.num_experts - 1}, or -1")
        return indices.int(), weights.float() if weights is not None else None

    def _require_own(self, handle):
        if handle._route is not self:
            raise ValueError("the handle is another route's")

    def _revoking(self):
        return self.grid.revoking("a route")

    def __repr__(self):
        return (f"Route(num_experts={self.num_experts}, top_k={self.top_k}, hidden={self.hidden}, dtype={self.dtype}, "
                f"weights={self.weights!r}, ep_size={self.grid.ep_size}, esp_size={self.grid.esp_size})")
