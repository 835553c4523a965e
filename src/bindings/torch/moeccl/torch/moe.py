"""The layer around the caller's gate and experts."""

import contextlib
import copy
import math
import weakref

import torch
from torch.distributed import get_process_group_ranks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import Replicate, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C
from . import chunks as chunked
from . import recomputation, state
from .averaging import connected, graph_of_compiler, needs_average, note_backward, refuse_hooks, scaled_parameters
from .experts import (among_replicas, is_flattened, lists_of, number_experts, pattern_of, places_of, refuse_averaged,
                      refuse_cut, refuse_wrapper, register)
from .grid import grid_of
from .losses import load_balancing_loss, loads, router_z_loss
from .passes import Owner, check_wire, refuse_transforms
from .told import AGAIN, BACKWARD, FORWARD, GATHERING, Coming, tell

# What layers exchange and add; other types are converted to float32.
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SCHEDULES = frozenset(_C.schedule_names())


def type_of(dtype):
    return dtype if dtype in TYPES else torch.float32


def _top_k(logits, k):
    """The k experts of the largest logits; weights: softmax, of several divided by their sum."""
    weights, indices = torch.softmax(logits, -1).topk(k, -1)
    return indices, weights if k == 1 else weights / weights.sum(-1, keepdim=True)


def _weights_of(indices, logits):
    """Those that the logits give to experts which were chosen before: 0 for -1, and where they vanish beside other experts'.
    Other wrong indices are found behind it."""
    made = indices >= 0
    weights = torch.softmax(logits, -1).gather(1, indices.long().clamp(0, logits.shape[1] - 1)) * made
    if indices.shape[1] == 1:
        return weights
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, 1)


def _flat(tokens):
    """All tokens, one after another."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() == 0:
        what = "of no dimension" if isinstance(tokens, torch.Tensor) else f"a {type(tokens).__name__}"
        raise TypeError(f"tokens are {what}; they must be a tensor [..., M]")
    return tokens.reshape(-1, tokens.shape[-1])


def _one_row(rows):
    """A row in the place of none, whose result nobody uses."""
    return torch.cat([rows, rows.new_ones(1, rows.shape[1])])


class MoE(Owner, torch.nn.Module):
    """A Mixture-of-Experts layer around a gate and experts of any kind, whose tokens moeccl exchanges.

        layer = MoE(experts, gate)
        output = layer(tokens)                       # [..., M] to [..., M]
        output = MoE(experts)(tokens, indices, weights)
        output = layer(tokens, chosen=chosen)        # by a routing of before, of layer.chosen(), with weights by the gate

    experts      A ModuleList or a list of this rank's experts, each called with its rows [n, M] (n may be 0), of which it
                 makes rows [n, M]. Or one module for all of this rank's experts, called with (rows, begins): rows
                 begins[e] to begins[e + 1] - 1 of [n, M] are those of its e-th expert. Rank r of the EP group holds
                 experts r * local to (r + 1) * local - 1. With esp_size > 1 they are shards, whose results add up.
    gate         Called with tokens [n, M]. Returns logits [n, E], of which softmax and top_k make the routing; or
                 (indices [n, k], weights [n, k]) in any order; or, as routers of transformers do, (logits, weights,
                 indices). An index of -1 is a choice that is not made; no expert twice in a token. None: whoever
                 calls the layer brings indices and weights.
    top_k        With a gate of logits.
    num_experts  Of all ranks. Needed where experts is no list and has no attribute num_experts, of its own.
    group        A process group of any backend; None: the default one. All of its ranks make the layer, and call it.
    mp_size      So many consecutive ranks have the same tokens.
    ep_size, esp_size, order
                 Each ep_size * esp_size consecutive ranks of the group hold all experts, one of ep_size parts of them
                 each, cut into esp_size shards. order: whether ranks of an ESP group ("esp") or of an EP group
                 ("ep") are consecutive. ep_size None: as large as can be. Where the group has more ranks, experts
                 have replicas: their parameters are made those of the first, and gradients are averaged.
    capacity_factor, capacity_groups
                 None: dropless. Else each expert takes top_k * capacity_factor * n / E tokens of each MP group, first
                 choices before second ones, in the order of tokens; further ones are dropped. n is the MP group's own
                 number of tokens in that pass, whatever other ranks bring.
    schedule     "auto", "baseline", "S1", "S2" or "PPMoE".
    learn        Whether a layer whose schedule is "auto" times its passes, corrects predictions by that, and changes
                 its schedule on all ranks at the same step. explain() then says what it learned.
    tokens       The most that a rank brings in one call, the same on all ranks. With it ranks need not tell each
                 other what they come with (one small all-gather before each forward and backward pass). An error that
                 one rank sees before then breaks the layers of all, until recover().
    hidden       Hidden size of an expert, all shards together, for predictions. None: from its number of parameters.
    expert_dims  {name: dimension} of parameters of experts, as experts.named_parameters() names them; * and ? stand for
                 others. The dimension is that in which this rank's experts lie one after another; None: all experts of
                 all ranks share the parameter. It is made the first rank's, and its gradient added over all ranks. Told
                 without it: parameters in the list of experts, and those whose first dimension is this rank's number
                 of experts. What several experts of the list share, all share.
    shard_dims   {name: dimension} in which a parameter is cut into esp_size shards; None: all shards have the same. Needed
                 for state_dicts where experts are cut.
    gradients    Of the experts' parameters. "mean": those of the mean of the ranks' losses, as under
                 DistributedDataParallel; "sum": of their sum; None: of the sum over the ranks that share the experts,
                 and replicas are left to the caller, as DeepSpeed wants it.
    chunks       Each rank's tokens are cut into so many parts, and rows of one travel while experts compute another's. So
                 experts are called so many times, and what a call returns must stay as it is until the layer's call ends. Results
                 are those of one chunk but for rounding; the same choices are dropped. If experts compute each row by itself, and
                 neither pass follows a schedule, outputs and gradients of tokens and weights have the same bits. Under a schedule
                 (explain() tells) nothing travels beside experts, shared ones neither. torch.compile takes all tokens as one
                 chunk.
    shared_experts
                 A module that all tokens [n, M] pass, besides the experts that they choose. It makes rows [n, M], which are
                 added to the output. It runs while the first rows travel, so it must not change the tokens in place. All ranks
                 have it, as they have the gate: DistributedDataParallel or FSDP averages its gradients.

    wire         torch.float8_e4m3fn or float8_e5m2: tokens on their way to experts, and gradients of outputs, travel as that,
                 with a scale for each 128 elements. Of dropless layers whose schedule is "auto" and mp_size 1.

    Tokens are exchanged in their own type: float32, float64, float16 or bfloat16, of which 16-bit ones are added in
    float32. Weights are float32 beside all of them but float64. Gradients of experts without rows are zero, not None.
    """

    whole_states = True  # state_dicts have all experts

    def __init__(self, experts, gate=None, *, top_k=None, num_experts=None, group=None, mp_size=1, ep_size=None,
                 esp_size=1, order="esp", capacity_factor=None, capacity_groups=None, schedule="auto", learn=False,
                 tokens=None, hidden=None, expert_dims=None, shard_dims=None, gradients="mean", wire=None, chunks=1,
                 shared_experts=None):
        super().__init__()
        self.grid = grid_of(group, mp_size, ep_size, esp_size, order)
        rank = self.grid.group.rank()
        self.chunks = chunked.check_chunks(chunks, rank)
        self.shared_experts = chunked.check_shared_experts(shared_experts, rank)
        chunked.check_with_chunks(chunks, learn, schedule, capacity_factor, capacity_groups)
        if isinstance(experts, (list, tuple)):
            experts = torch.nn.ModuleList(experts)
        self.gate, self.experts = gate, experts
        if num_experts is None:
            local = len(experts) if isinstance(experts, torch.nn.ModuleList) else getattr(experts, "num_experts", None)
            if local is None:
                raise ValueError("num_experts must be given: experts is no list of modules and has no num_experts")
            num_experts = local * self.grid.ep_size
        self.num_experts = num_experts
        self.num_local_experts, rest = divmod(num_experts, self.grid.ep_size)
        if rest or num_experts < 1:
            raise ValueError(f"num_experts is {num_experts}; it must be a multiple of ep_size, {self.grid.ep_size}")
        if isinstance(experts, torch.nn.ModuleList) and len(experts) != self.num_local_experts:
            raise ValueError(f"there are {len(experts)} experts; with num_experts {num_experts} and ep_size "
                             f"{self.grid.ep_size} each rank has {self.num_local_experts}")
        self._check_arguments(gate, top_k, schedule, capacity_factor)
        self.wire = check_wire(wire)
        if wire is not None and (capacity_factor is not None or mp_size > 1 or schedule != "auto"):
            raise ValueError(f"wire is {wire}; that takes a dropless layer (capacity_factor None) whose schedule is 'auto', and "
                             "an mp_size of 1")
        if gradients not in ("mean", "sum", None):
            raise ValueError(f"gradients is {gradients!r}; it must be 'mean', 'sum' or None")
        if capacity_factor is not None and not 0 < capacity_factor < math.inf:
            raise ValueError(f"capacity_factor is {capacity_factor}; it must be a finite number above 0, or None for a dropless layer")
        self.top_k, self.hidden, self.tokens = top_k, hidden, tokens
        self.capacity_factor = float(capacity_factor or 0)
        self.capacity_groups = capacity_groups or 0
        self.schedule, self.learn, self.gradients = schedule, learn, gradients
        # Replicas' gradients are averaged, so a sum is theirs times as many.
        batches = self.grid.size // self.grid.mp_size
        self._scale = {"mean": 1 / batches, "sum": float(self.grid.replicas), None: 1.0}[gradients]
        self._routes = {}  # by what ranks agree on
        self._averages = True
        self._noted = None
        self.half_done = {}  # backward passes behind their first exchange, by number
        self._told_backward = set()  # numbers of passes that are computed again, before their gradients
        self._live()
        self._checked = self._checked_parallel = None
        self.number = self.grid.number_layer()
        self.shard_dims = dict(shard_dims or {})
        self._place_parameters(dict(expert_dims or {}))
        self.share_replicas()

    def _live(self):
        super()._live()
        self._routed = None  # logits and indices of the last forward pass
        self._last = None  # its route, which schedule or algorithm brought its rows, how many choices it dropped, and its chunks

    def _check_arguments(self, gate, top_k, schedule, capacity_factor):
        if top_k is not None and (not isinstance(top_k, int) or not 1 <= top_k <= self.num_experts):
            raise ValueError(f"top_k is {top_k!r}; it must be a whole number from 1 to {self.num_experts}, the number of "
                             "experts")
        if schedule not in _C.schedule_names():
            raise ValueError(f"schedule is {schedule!r}; it must be one of {', '.join(_C.schedule_names())}")
        if schedule == "S2" and capacity_factor is None:
            raise ValueError("schedule is 'S2', which splits the capacity; it needs a capacity_factor")
        if schedule == "PPMoE" and self.grid.mp_size != self.grid.size:
            raise ValueError(f"schedule is 'PPMoE', where all ranks have the same tokens; mp_size must be {self.grid.size}, "
                             f"and is {self.grid.mp_size}")
        if isinstance(gate, torch.nn.Linear) and gate.out_features != self.num_experts:
            raise ValueError(f"the gate has {gate.out_features} outputs; there are {self.num_experts} experts")

    def _place_parameters(self, dims):
        experts, local = self.experts, self.num_local_experts
        self._count = len(list(experts.parameters()))
        self.sharded = among_replicas(experts, self.replica_ranks(), self._count)
        self.lists = list(lists_of(experts, local, dims))
        self.places = places_of(experts, self.lists, local, dims)
        if self.whole_states:
            number_experts(self.lists, self.grid.ep_rank * local, self.num_experts)
            self.places = places_of(experts, self.lists, local, dims)
            state.install(self)
        self._shares = any(each.shared for each in self.places.values())
        self.note_sharded()
        register(self)

    def cut_of(self, name, needed=True):
        """How the experts' parameter is cut into shards: placements of torch.distributed.tensor, one or none."""
        if self.grid.esp_size == 1:
            return []
        pattern = pattern_of(name, self.shard_dims)
        if pattern is None:
            if not needed:
                return []
            raise ValueError(
                f"experts are cut into {self.grid.esp_size} shards; for a state_dict of all of them pass "
                f"shard_dims={{{name!r}: dimension}} to moeccl.torch.MoE, the dimension in which the parameter is cut, or "
                "None where all shards have the same. moeccl.torch.own_experts() makes state_dicts of this rank's alone")
        dim = self.shard_dims.get(pattern)
        return [Replicate() if dim is None else Shard(dim)]

    def _identities(self):
        """Of the parameters: what changes where somebody takes them away or cuts them."""
        parameters = list(self.experts.parameters())
        return [id(each) for each in parameters], [is_flattened(each) for each in parameters]

    def __deepcopy__(self, memo):
        # Without what the passes made, which a copy makes anew.
        result = memo[id(self)] = type(self).__new__(type(self))
        state = {**self.__dict__, "_routes": {}, "_noted": None, "half_done": {}, "_told_backward": set(), "_leaf": None,
                 "_routed": None, "_last": None}
        result.__dict__.update(copy.deepcopy(state, memo))
        result._live()
        register(result)
        return result

    def extra_repr(self):
        grid = self.grid
        return (f"num_experts={self.num_experts}, mp_size={grid.mp_size}, ep_size={grid.ep_size}, "
                f"esp_size={grid.esp_size}, replicas={grid.replicas}, "
                f"capacity_factor={self.capacity_factor or None}, schedule={self.schedule}")

    def forward(self, tokens, indices=None, weights=None, *, chosen=None):
        flat = self._or_fail(_flat, tokens)
        if (indices is None) != (weights is None):
            self._fail(ValueError("indices come with weights; those of layer.chosen() alone are passed as chosen="))
        if indices is None:
            indices, weights = self._or_fail(self._route, flat, chosen)
        elif chosen is not None:
            self._fail(ValueError("chosen= is a routing of before, and so are indices and weights; pass one of them"))
        else:
            self._routed = None, indices
        return self._exchange(flat, indices, weights).reshape(tokens.shape)

    def explain(self):
        """Which schedule or algorithm the last forward pass went by, and why: text with each candidate's predicted time."""
        route, way, _, chunks = self._last_pass()
        return f"The last pass went by {way}{f', in {chunks} chunks' if chunks > 1 else ''}.\n{route.explain()}"

    def dropped(self):
        """How many choices of this rank's tokens got no place in the last forward pass. Ranks of an MP group count their
        parts of its tokens."""
        return self._last_pass()[2]

    def _last_pass(self):
        if self._last is None:
            raise RuntimeError("this is about the last forward pass, and there was none")
        return self._last

    def balance_loss(self):
        """Of the last forward pass, to be added to the loss with a factor such as 0.01: load_balancing_loss."""
        logits, indices = self._last_routing(True)
        return load_balancing_loss(logits, indices)

    def z_loss(self):
        """Of the last forward pass, to be added to the loss with a factor such as 0.001: router_z_loss."""
        return router_z_loss(self._last_routing(True)[0])

    def chosen(self):
        """The indices [n, k] of this rank's tokens in the last forward pass. layer(tokens, chosen=chosen) goes by them again, with
        weights by the gate's logits as they are then."""
        return self._last_routing(False)[1]

    def loads(self):
        """int64 [num_experts]: how often this rank's tokens chose each expert in the last forward pass."""
        return loads(self._last_routing(False)[1], self.num_experts)

    def _last_routing(self, of_logits):
        if self._routed is None:
            raise RuntimeError("this is about the last forward pass, and there was none")
        if of_logits and self._routed[0] is None:
            raise RuntimeError("the gate returned no logits in the last forward pass, but indices and weights; call "
                               "moeccl.torch.load_balancing_loss(logits, indices) or router_z_loss(logits) in it")
        return self._routed

    @contextlib.contextmanager
    def no_sync(self):
        """Passes within do not average gradients of replicas; the next one outside does."""
        self._averages = False
        try:
            yield
        finally:
            self._averages = True

    def share_replicas(self):
        """Makes the experts' parameters and buffers those of the first replica, and what all experts share that of the
        first rank. Collective over the ranks that hold them."""
        shared = [each.data for each in self._shared()]
        parameters = [each for name, each in self.experts.named_parameters() if name not in self.sharded]
        tensors = [each.data for each in [*parameters, *self.experts.buffers()]]
        self._is_shared = not any(each.is_meta for each in tensors)
        if not self._is_shared:
            return  # the first forward pass does it
        if shared and self.grid.size > 1:
            self.grid.set.broadcast(shared)
        if self._replicas is not None and tensors:
            self._replicas.broadcast(tensors)

    def _share_late(self):
        self.share_replicas()
        for name, each in self.experts.named_parameters():
            if each.is_meta:
                raise ValueError(f"the experts' parameter {name} is on the device meta; give it memory and values first "
                                 "(model.to_empty(device='cpu'), then load_state_dict)")

    def _shared(self):
        """Parameters that all experts share."""
        return [each for name, each in self.experts.named_parameters() if name in self.places and self.places[name].shared]

    @property
    def _replicas(self):
        return self.grid.replica_set if self.gradients is not None else None

    def _or_fail(self, make, *given):
        """What it makes, or its error on all ranks."""
        if torch.compiler.is_compiling():
            return make(*given)
        try:
            return make(*given)
        except Exception as error:
            self._fail(error)

    def _route(self, tokens, chosen):
        """Indices and weights, by the gate; chosen: the indices of a routing that is replayed."""
        if self.gate is None:
            raise ValueError("the layer has no gate; call it with tokens, indices and weights")
        routing = self.gate(tokens)
        if isinstance(routing, torch.Tensor):
            if self.top_k is None:
                raise ValueError("the gate returns logits; top_k must be given")
            if routing.shape != (tokens.shape[0], self.num_experts):
                raise ValueError(f"the gate returned logits {tuple(routing.shape)}; they must be [tokens, experts], "
                                 f"{(tokens.shape[0], self.num_experts)}")
            if chosen is not None and (chosen.dim() != 2 or len(chosen) != len(tokens)):
                raise ValueError(f"chosen is {tuple(chosen.shape)}; it must be [tokens, k], of {len(tokens)} tokens")
            indices, weights = _top_k(routing, self.top_k) if chosen is None else (chosen, _weights_of(chosen, routing))
            self._routed = routing, indices
            return indices, weights
        if chosen is not None:
            raise ValueError("the gate returns no logits, of which weights could be made for chosen=; bring indices and weights")
        if len(routing) == 3:
            logits, weights, indices = routing
        elif len(routing) == 2:
            logits, (indices, weights) = None, routing
        else:
            raise ValueError(f"the gate returned {len(routing)} things; see moeccl.torch.MoE")
        if indices.is_floating_point():
            indices, weights = weights, indices
        self._routed = logits, indices
        return indices, weights

    def _route_for(self, tokens, choices, dtype, training, chunks):
        """The route of the pass, or of those of all chunks, made by the first one of its kind."""
        count, embedding = tokens.shape
        if self.tokens is None:
            kind = FORWARD if torch._C._current_graph_task_id() == -1 else AGAIN
            tell(self.grid, self._told, Coming(kind, self.number, 0, count, embedding, choices, TYPES.index(dtype),
                                               int(training), chunks, int(self.shared_experts is not None)))
        key = (embedding, choices, dtype, training, chunks)
        if key not in self._routes:
            self._routes[key] = self._new_route(*key)
        return self._routes[key]

    def _new_route(self, embedding, choices, dtype, training, chunks):
        drops = self.capacity_factor > 0 and chunks == 1  # what chunks drop is known before
        try:
            return _C.Route(
                self.grid.handle, dtype, self.num_experts, choices, embedding, max_tokens=-(-(self.tokens or 0) // chunks),
                capacity_factor=self.capacity_factor if drops else 0.0,
                capacity_groups=self.capacity_groups if drops or self.capacity_factor == 0 else 0,
                shared_tokens=self.grid.mp_size > 1, schedule=self.schedule, expert_elements=self._expert_elements(embedding),
                training=training, learn=self.learn, wire=self.wire)
        except ValueError as error:
            if self.tokens is None or "maxTokens" not in str(error):
                raise
            raise ValueError(f"{error}. On rank {self.grid.group.rank()} of the process group tokens is {self.tokens} and chunks "
                             f"is {chunks}, so that a chunk has up to {-(-self.tokens // chunks)} tokens; both must be the same on "
                             "all ranks") from error

    @property
    def _told(self):
        return self.grid.everyone if self._replicas is not None else self.grid.set

    def tell_gathering(self):
        """Before a collective around the layer: raises an error on all ranks, where some of them come to a pass."""
        tell(self.grid, self._told, Coming(GATHERING, 0, 0, 0, 0, 0, 0, 0))

    def forget(self):
        """Leaves all passes, and what was made for them."""
        self._routes.clear()
        self.half_done.clear()
        self._told_backward.clear()
        self._noted = self._last = None

    def _expert_elements(self, embedding):
        """Of all shards; the same on all ranks."""
        if self.hidden is not None:
            return 2 * embedding * self.hidden
        return sum(each.numel() for each in self.experts.parameters()) // self.num_local_experts * self.grid.esp_size

    def _exchange(self, tokens, indices, weights):
        if torch.compiler.is_compiling() and not self._scales_parameters(tokens):
            begun = self._begun(tokens, indices, weights)
            shared = self.run_shared_experts(tokens)
            output = self._finished(tokens, *begun)
            return output if shared is None else output + shared
        return self._guarded(tokens, indices, weights)

    @torch.compiler.disable
    def _guarded(self, *given):
        """A pass that an error ends on all ranks."""
        try:
            refuse_transforms()
            given = [each.clone() if isinstance(each, AsyncCollectiveTensor) else each for each in given]
            for name, each in zip(("tokens", "indices", "weights"), given):
                if not isinstance(each, torch.Tensor):
                    raise TypeError(f"{name} are a {type(each).__name__}; they must be a tensor")
                refuse_wrapper(each, name)
        except Exception as error:
            self._fail(error)
        if self.chunks == 1 and self.shared_experts is None:
            begun = self._begun(*given)
            with self.revoking():
                return self._finished(given[0], *begun)
        tokens, indices, weights = given
        with _disable_current_modes():  # a selective checkpoint counts operators, and a recomputation takes fewer of them
            passes = self._begin(tokens.detach(), indices, weights.detach(), torch.is_grad_enabled(), self.chunks)
        with self.revoking():
            return chunked.run(self, tokens, weights, passes)

    def _revoke(self, error):
        self.grid.revoke_for(error, f"layer {self.number}")

    def revoking(self):
        return self.grid.revoking(f"layer {self.number}")

    def _refuse_unfinished(self):
        """Where a backward pass has raised an error on this rank, others wait in it."""
        if self.grid.unfinished and torch._C._current_graph_task_id() == -1:
            error = RuntimeError(f"the backward pass of layer {min(self.grid.unfinished)} was not finished on this rank; call "
                                 "moeccl.torch.recover() on all ranks")
            self.grid.unfinished.clear()
            self._revoke(error)
            raise error

    def _begun(self, tokens, indices, weights):
        ticket, begins, _ = torch.ops.moeccl.route_begin(tokens.detach(), indices, weights.detach(), torch.is_grad_enabled(),
                                                         self.id)
        experts = torch.ops.moeccl.route_experts(begins)
        rows, _, anchor = torch.ops.moeccl.route_dispatch(tokens, None, self._leaf, ticket, experts, self.id)
        return weights, ticket, begins, rows, anchor

    def _finished(self, tokens, weights, ticket, begins, rows, anchor):
        results = self.results_of(rows.to(tokens.dtype), begins)
        output = torch.ops.moeccl.route_combine(results, weights, anchor, ticket, self.id, tokens.shape[0])
        return output.to(tokens.dtype)

    def results_of(self, rows, begins):
        """What the experts make of their rows."""
        graph = graph_of_compiler()
        with self._scaled(rows):
            parts = self._run_experts(rows, begins)
        results = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not isinstance(results, torch.Tensor):
            raise TypeError(f"experts made a {type(results).__name__} of their rows; they must make a tensor [rows, M]")
        whole = torch.compiler.is_compiling() and graph_of_compiler() == graph
        return connected(self, results, rows) if torch.is_grad_enabled() and not whole else results

    def run_shared_experts(self, tokens):
        """What they add to the output; None where there are none."""
        if self.shared_experts is None:
            return None
        made = self.shared_experts(tokens)
        if not isinstance(made, torch.Tensor):
            raise TypeError(f"shared_experts made a {type(made).__name__} of tokens; it must make a tensor of their shape")
        if made.shape != tokens.shape:
            raise ValueError(f"shared_experts made {tuple(made.shape)} of tokens {tuple(tokens.shape)}; both must have one shape")
        return made.to(tokens.dtype)

    def wait_beside(self):
        """The halves' own part: until what goes on beside is complete."""
        with self.revoking():
            for route in self._routes.values():
                route.await_all()

    # The operators' own parts.

    type_of = staticmethod(type_of)

    def begin(self, tokens, indices, weights, training):
        return self._begin(tokens, indices, weights, training, 1)[0]

    def _begin(self, tokens, indices, weights, training, chunks):
        """A pass for each chunk of the tokens. Of their tickets the last one's has the number of what ranks told each other: its
        backward pass comes first. Others have -1."""
        self._refuse_unfinished()
        kept = recomputation.kept(self)
        try:
            tokens, indices, weights = self._checked_call(tokens, indices, weights, training)
            if kept is not None and not torch.equal(kept[1], indices.int()):
                raise RuntimeError("a checkpoint computes the layer again, and its tokens choose other experts than the first "
                                   "time; what the gate computes must be the same (see preserve_rng_state of "
                                   "torch.utils.checkpoint)")
        except Exception as error:
            self._fail(error)
        if kept is not None:
            return self._begin_again(kept[0])
        route = self._route_for(tokens, indices.shape[1], type_of(tokens.dtype), training, chunks)
        sent, dropped = self._with_places(indices) if chunks > 1 and self.capacity_factor else (indices, 0)
        with self.revoking():
            notes = [-1] * (chunks - 1) + [self.grid.told.get(self._told, 0)]
            parts = (each.split(chunked.sizes_of(len(tokens), chunks)) for each in (sent, weights))
            begun = [route.begin(*given) for given in zip(*parts, notes)]
        way = begun[-1].algorithm()
        self._last = route, way, dropped + sum(each.dropped() for each in begun), chunks
        # A pass under a schedule has the memory that the checkpoint is to save.
        keeps = training and way not in _SCHEDULES
        recomputation.keep(self, lambda: (begun, indices.to(torch.int32, copy=True)) if keeps else None)
        return begun

    def _with_places(self, indices):
        mp_size = self.grid.mp_size
        return chunked.with_places(indices, self.num_experts, self.capacity_factor, self.capacity_groups or mp_size, mp_size,
                                   self.grid.rank % mp_size)

    def _begin_again(self, begun):
        """A checkpoint computes the layer again, in a backward pass. What ranks tell each other before the gradients they tell
        now."""
        number, of = begun[-1].ticket().tolist()
        if self.tokens is None:
            self._tell_backward(of)
        self._told_backward.add(number)
        self.grid.unfinished.add(self.number)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._after_recomputation(number))
        return begun

    def _after_recomputation(self, number):
        """Behind a backward pass, which may have needed no gradients of the layer."""
        if number in self._told_backward:
            self._told_backward.discard(number)
            self.grid.unfinished.discard(self.number)

    def _tell_backward(self, of):
        tell(self.grid, self._told, Coming(BACKWARD, self.number, of, 0, 0, 0, 0, 1))

    def start_combine_backward(self, ticket, output, results, beside=False):
        number, of = ticket.tolist()
        if number in self._told_backward:
            self._told_backward.discard(number)
        elif self.tokens is None and of >= 0:
            self._tell_backward(of)
        note_backward(self, self._leaf)
        self.grid.unfinished.add(self.number)
        rows, weights = super().start_combine_backward(ticket, output, results, beside)
        self.half_done[number] = ticket, rows.shape
        return rows if beside else self.times(rows, self.scale_of(rows.dtype)), weights

    def start_dispatch_backward(self, ticket, rows, row_weights, beside=False):
        """No rank waits for this one any more, but for averages."""
        tokens, weights = super().start_dispatch_backward(ticket, rows, row_weights, beside)
        self.half_done.pop(ticket[0].item(), None)
        if not self.half_done and not self._told_backward and not any(needs_average(self, name) for name in self.places):
            self.grid.unfinished.discard(self.number)
        return tokens if beside else self.times(tokens, 1 / self.scale_of(rows.dtype)), weights

    @staticmethod
    def times(gradient, factor):
        return gradient if factor == 1 else gradient.mul_(factor)

    def scale_of(self, dtype):
        """Of gradients on their way to the experts. What 16 bits would round to nothing is divided where it is large: in
        gradients of parameters."""
        return 1.0 if dtype == torch.float16 else self._scale

    def _scaled(self, tokens):
        if not self._scales_parameters(tokens):
            return contextlib.nullcontext()
        return scaled_parameters(self, self._scale / self.scale_of(type_of(tokens.dtype)))

    def _scales_parameters(self, tokens):
        """Whether gradients of some parameters count otherwise than those of others, or than gradients of rows."""
        return torch.is_grad_enabled() and (self._shares or self.scale_of(type_of(tokens.dtype)) != self._scale)

    @torch.compiler.disable
    def _fail(self, error):
        """Raises the error, and what it says on all ranks that the layer is told of."""
        if self.tokens is not None:
            self._revoke(error)
            raise error
        tell(self.grid, self._told, error=error)

    def _checked_call(self, tokens, indices, weights, training):
        """Tokens, indices and weights, or an error that this rank sees by itself."""
        self.note_sharded()
        self._refuse_averaged()
        if not self._is_shared:
            self._share_late()
        if tokens.device.type != "cpu":
            raise NotImplementedError(f"moeccl.torch.MoE serves tensors on CPUs; the tokens are on {tokens.device}")
        if indices.dim() != 2 or indices.shape != weights.shape or len(indices) != len(tokens):
            raise ValueError(f"indices are {tuple(indices.shape)} and weights {tuple(weights.shape)}; both must be "
                             f"[tokens, k], of {len(tokens)} tokens")
        if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool or tokens.is_complex():
            raise ValueError(f"indices are {indices.dtype} and tokens {tokens.dtype}; indices must be whole numbers, "
                             "and tokens real ones")
        if self.tokens is not None and len(tokens) > self.tokens:
            raise ValueError(f"there are {len(tokens)} tokens; the layer was made for up to {self.tokens}")
        _C.check_indices(indices, self.num_experts)
        if training:
            refuse_hooks(self)
        if training and self.sharded and self.scale_of(type_of(tokens.dtype)) != self._scale:
            raise ValueError("tokens are float16 and fully_shard has cut the experts: gradients of both would need other scales; "
                             "use bfloat16 or float32, or leave the experts out (ignored_params=)")
        # Others may have no -1, which says that a choice is not made.
        return tokens, indices if indices.dtype in (torch.int32, torch.int64) else indices.long(), weights

    def note_sharded(self):
        """Finds out which parameters fully_shard has cut among replicas; an error where FSDP has cut them otherwise."""
        found = self._identities()
        if found == self._checked:
            return
        ranks = self.replica_ranks()
        self.sharded = among_replicas(self.experts, ranks, self._count)
        shared = [each for each in self.sharded if each in self.places and self.places[each].shared]
        if shared:
            raise TypeError(f"the experts' parameter {shared[0]} was sharded by fully_shard, and all experts share it; leave it "
                            "out by ignored_params=")
        if self.sharded and self.grid.size > 1:
            for what, module in (("the gate's", self.gate), ("shared_experts'", self.shared_experts)):
                if module is not None:
                    refuse_cut(module, ranks, what)
        self._checked = found

    def _refuse_averaged(self):
        """An error where DistributedDataParallel averages experts that differ."""
        parallel, checked = DistributedDataParallel._get_active_ddp_module(), self._checked_parallel
        if parallel is None or (checked is not None and checked() is parallel):
            return
        if self.grid.size > 1:
            refuse_averaged(self.experts, self.places, parallel, self.replica_ranks())
        self._checked_parallel = weakref.ref(parallel)

    def replica_ranks(self):
        """Of torch.distributed: those that hold the same experts, or the same shards of them."""
        everyone = get_process_group_ranks(self.grid.group)
        return [everyone[each] for each in self.grid.replica_ranks]

    @property
    def replica_mesh(self):
        """The DeviceMesh of the ranks that hold the same experts: fully_shard(layer.experts, mesh=layer.replica_mesh). Collective
        over them, the first time."""
        return self.grid.replica_mesh

    def _run_experts(self, rows, begins):
        """What they make of the rows, in one or several parts. begins: a tensor."""
        if not isinstance(self.experts, torch.nn.ModuleList):
            if self._needs_row(rows):
                return [self.experts(_one_row(rows), [0] + [1] * self.num_local_experts)[:0]]
            return [self.experts(rows, begins.tolist())]
        return [expert(_one_row(part))[:0] if self._needs_row(part) else expert(part)
                for expert, part in zip(self.experts, rows.split(begins.diff().tolist()))]

    def _needs_row(self, rows):
        """FSDP reduces gradients at the same place of the backward pass on all ranks, those of experts without rows too."""
        return bool(self.sharded) and len(rows) == 0 and torch.is_grad_enabled()
