"""Rows to experts and back, on tensors, with gradients."""

import torch
import torch.distributed as dist

from .. import _C
from .beside import Half, Pending
from .grid import grid_of
from .passes import Owner, check_wire, refuse_transforms

WEIGHTS = {"combine": _C.RouteWeights.combine, "rows": _C.RouteWeights.rows, None: _C.RouteWeights.none}


class Handle:
    """A routing whose tokens are on their way, as Route.dispatch returns it. While it is there, its layout is kept.

    tokens       how many this rank brought
    rows         how many come to this rank, padding included
    experts      int64 [rows]: which of this rank's experts each row is for, counted from 0; rows are ordered by it
    counts       int64 [local experts]: how many of them each expert gets, without padding
    offsets      int32 [local experts]: where each expert's rows and their padding end, as torch's grouped_mm takes it
    rank_counts  int64 [local experts, ranks]: how many come from each rank; of an expert, rows are ordered by it
    row_weights  float32 [rows], with gradients, of a route with weights="rows"
    dropped      how many choices of this rank's tokens found no room
    algorithm    that brings the rows

    Of a route with rows_by_token rows are ordered by rank: experts is int32 [rows, top_k], -1 for a choice that is not of this
    rank, row_weights is [rows, top_k], 0 for these, and counts, offsets and rank_counts are of all rows.
    """

    def __init__(self, route, tokens, weights, ticket, begins, rank_counts, experts):
        self._route, self._weights, self._ticket = route, weights, ticket
        self.tokens = tokens
        self._anchor = self.row_weights = None
        self._rows = self.experts = experts
        if route.rows_by_token:
            self.experts = torch.ops.moeccl.route_row_experts(ticket, experts, route.id)
        self.rank_counts = rank_counts
        self.counts, self.offsets = rank_counts.sum(1), begins[1:].int()

    @property
    def rows(self):
        return self.experts.shape[0]

    @property
    def dropped(self):
        return _C.route_pass(self._ticket).dropped()

    @property
    def algorithm(self):
        return _C.route_pass(self._ticket).algorithm()


class Route(Owner):
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
    wire         torch.float8_e4m3fn or float8_e5m2: rows of dispatch, and of combine's gradient, travel as that, with a scale
                 for each 128 elements. None: as they are
    alignment    each expert's rows begin at a multiple of this, and zeros lie between
    max_rows     the most rows that come to a rank, with padding. Experts share the room evenly, and what finds none is dropped:
                 it adds nothing to its token's output, and handle.dropped counts it. None: all come
    rows_by_token  True: a rank gets one row of a token, with the numbers of its experts there (handle.experts) and their
                 weights; the caller adds up what they make of it, and combine what ranks return. With weights "rows" or None
    """

    def __init__(self, num_experts, top_k, hidden, *, dtype=torch.bfloat16, weights="combine", group=None, ep_size=None,
                 esp_size=1, order="esp", algorithm=None, wire=None, alignment=1, max_rows=None, rows_by_token=False):
        if weights not in WEIGHTS:
            raise ValueError(f"weights is {weights!r}; it must be 'combine', 'rows' or None")
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"a route is of float32, float16 or bfloat16, not {dtype}")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; it must be 1 or more, or None for any number of rows")
        self.grid = grid_of(group, 1, ep_size, esp_size, order)
        self.wire, self.alignment = check_wire(wire), alignment
        self.max_rows, self.rows_by_token = max_rows, rows_by_token
        self.num_experts, self.top_k, self.hidden = num_experts, top_k, hidden
        self.dtype, self.weights, self.algorithm = dtype, weights, algorithm
        share, longer = divmod(num_experts, self.grid.ep_size)
        self.first_expert = self.grid.ep_rank * share + min(self.grid.ep_rank, longer)
        self.num_local_experts = share + (self.grid.ep_rank < longer)
        self._live()
        self._on = self._made = None
        self._connect()

    def _connect(self):
        """Anew where moeccl.torch.recover() has made the grid anew."""
        if self._on is not self.grid.handle:
            self._on = self.grid.handle
            self._made = _C.Route(self._on, self.dtype, self.num_experts, self.top_k, self.hidden, WEIGHTS[self.weights],
                                  self.algorithm or "", wire=self.wire, alignment=self.alignment,
                                  max_rows=0 if self.max_rows is None else self.max_rows, rows_by_token=self.rows_by_token)
        return self._made

    def dispatch(self, tokens, indices=None, weights=None, handle=None, async_op=False):
        """rows [rows, hidden] of this rank's experts, ordered by expert; and the handle for combine.

        tokens [n, hidden], indices [n, k] (-1: no expert), weights [n, k]. With a handle instead of indices and weights,
        tokens go as those that it was made for: ranks exchange rows and nothing else. With async_op, something whose wait()
        returns that: until then rows are under way while the caller computes, and tokens stay as they are.
        """
        if handle is None:
            handle = self.prepare(tokens, indices, weights)
        self._require_own(handle)
        given = handle._weights if self.weights == "rows" else None
        if async_op and not torch.compiler.is_compiling():
            return self._dispatch_beside(tokens, given, handle)
        made = torch.ops.moeccl.route_dispatch(tokens, given, self._leaf, handle._ticket, handle._rows, self.id)
        result = self._dispatched(handle, *made)
        return Pending(lambda: result) if async_op else result

    def prepare(self, tokens, indices, weights=None):
        """The handle of a routing whose tokens dispatch(tokens, handle=) sends: all that is exchanged beside rows. So a
        checkpoint around dispatch, experts and combine, with this before it, sends rows again and nothing else."""
        if not torch.compiler.is_compiling():
            self._telling(self._connect(), refuse_transforms)
        given = weights.detach() if weights is not None else None
        ticket, begins, rank_counts = torch.ops.moeccl.route_begin(tokens.detach(), indices, given, torch.is_grad_enabled(),
                                                                   self.id)
        return Handle(self, tokens.shape[0], weights, ticket, begins, rank_counts, torch.ops.moeccl.route_experts(begins))

    def combine(self, results, handle, async_op=False):
        """Output [n, hidden]: of each token the sum of what its experts made of it, zeros for a token without any. async_op: as
        of dispatch; until wait() returns results stay as they are."""
        self._require_own(handle)
        weights = handle._weights if self.weights == "combine" else None
        if async_op and not torch.compiler.is_compiling():
            return self._combine_beside(results, weights, handle)
        output = torch.ops.moeccl.route_combine(results, weights, handle._anchor, handle._ticket, self.id, handle.tokens)
        return Pending(lambda: output) if async_op else output

    def _dispatched(self, handle, rows, row_weights, anchor):
        handle._anchor = anchor if handle._anchor is None else handle._anchor + anchor
        if self.weights == "rows":
            handle.row_weights = row_weights
        return rows, handle

    def _dispatch_beside(self, tokens, weights, handle):
        travel = weights is not None

        def start(ticket, tokens, weights, leaf):
            rows, row_weights = self.start_dispatch(ticket, tokens, True)
            return rows, row_weights, rows.new_empty(0)

        def start_backward(ticket, kept, rows, row_weights, anchor):
            tokens, of_weights = self.start_dispatch_backward(ticket, rows, row_weights, True)
            return tokens, of_weights if travel else None, rows.new_empty(0, dtype=torch.float32)

        half = Half(self, start, start_backward)
        made = half.begin(handle._ticket, tokens.to(self.dtype), weights, self._leaf)
        return Pending(lambda: self._dispatched(handle, *half.end(handle._ticket, None, *made)))

    def _combine_beside(self, results, weights, handle):
        results, weighs = results.to(self.dtype), weights is not None

        def start(ticket, results, weights, anchor):
            return self.start_combine(ticket, results, True)

        def start_backward(ticket, results, output):
            results, of_weights = self.start_combine_backward(ticket, output, results, True)
            return results, of_weights if weighs else None, output.new_empty(0)

        half = Half(self, start, start_backward)
        made = half.begin(handle._ticket, results, weights, handle._anchor)
        return Pending(lambda: half.end(handle._ticket, results.detach(), made)[0])

    def wait_beside(self):
        """The halves' own part: until what goes on beside is complete."""
        with self.revoking():
            self._made.await_all()

    # The operators' own parts.

    def type_of(self, dtype):
        return self.dtype

    def begin(self, tokens, indices, weights, training):
        made = self._connect()
        self._telling(made, self._check, tokens, indices, weights)
        try:
            return made.begin(indices, weights)
        except (dist.DistBackendError, ValueError):  # of all ranks
            raise
        except BaseException as error:  # of this one, such as a KeyboardInterrupt
            self.grid.revoke_for(error, "a route")
            raise

    def _telling(self, made, check, *given):
        """What check raises on this rank is raised on all."""
        try:
            check(*given)
        except Exception as error:
            made.tell_error(f"rank {self.grid.group.rank()} of the process group: {type(error).__name__}: {error}")
            raise

    def _check(self, tokens, indices, weights):
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
        _C.check_indices(indices, self.num_experts, repeated=True)

    def _require_own(self, handle):
        if handle._route is not self:
            error = ValueError("the handle is another route's")
            self.grid.revoke_for(error, "a route")
            raise error

    def revoking(self):
        return self.grid.revoking("a route")

    def __repr__(self):
        return (f"Route(num_experts={self.num_experts}, top_k={self.top_k}, hidden={self.hidden}, dtype={self.dtype}, "
                f"weights={self.weights!r}, ep_size={self.grid.ep_size}, esp_size={self.grid.esp_size})")
