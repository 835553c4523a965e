"""What is the fastest, without a layer or a call."""

import torch

from .. import _C
from .grid import ORDERS
from .moe import type_of

_OF_LAYERS = ("experts", "top_k", "embedding", "hidden", "tokens")
_OF_LAYERS_ALONE = ("top_k", "embedding", "hidden", "tokens", "capacity_factor", "capacity_groups")


def select(collective=None, *, nodes, bytes=None, experts=None, top_k=None, embedding=None, hidden=None, tokens=None,
           mp_size=1, ep_size=None, esp_size=1, order="esp", capacity_factor=None, capacity_groups=None,
           dtype=torch.float32, training=True, profile=None, explain=False):
    """The schedules that a layer can follow, or the algorithms of a collective, on a cluster that need not be here: the
    fastest as predicted first.

        select(nodes=[8, 8], experts=64, top_k=2, embedding=1024, hidden=4096, tokens=2048)[0].name
        select("alltoall", nodes=[8, 8], bytes=1 << 20)[0].name

    nodes: ranks of each node. profile: the path of a profile made by moeccl-fit on the cluster, or on one with such nodes
    and links; None: typical links. mp_size, ep_size, esp_size and order are as for MoE.

    Of a layer: experts, of all ranks; hidden, of an expert with all its shards; tokens, of one rank (and those that share
    them). Others as for MoE. training: forward and backward.

    Of a collective: its name as in MOECCL_ALGO; bytes, of what one rank sends. Those of a grid, such as "dispatch", take its
    sizes, and experts; without experts each rank of an EP group has one.

    Returns a list with name, seconds, communication (of a schedule's seconds), bytes_between (that a rank sends to other
    nodes) and measured; with explain=True a text instead, with every term.
    """
    given = {name: each for name, each in locals().items() if each is not None}
    ranks = sum(nodes)
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it must be 'esp' or 'ep'")
    ep_size = ep_size or ranks // esp_size
    grid = mp_size, ep_size, esp_size, order == "ep", list(nodes), profile or ""
    if collective is None:
        _require(given, _OF_LAYERS, ("bytes",), "a layer")
        found = _C.predict_schedules(tokens, embedding, hidden, experts, top_k, float(capacity_factor or 0),
                                     capacity_groups or 0, type_of(dtype), training, *grid)
    else:
        _require(given, ("bytes",), _OF_LAYERS_ALONE, "a collective")
        if not isinstance(bytes, int) or bytes < 0:
            raise ValueError(f"bytes is {bytes!r}; it must be a whole number, 0 or more, of what one rank sends")
        found = _C.predict_algorithms(collective, bytes, _experts_per_rank(experts, ep_size), *grid)
    choices, text = found
    return text if explain else choices


def _require(given, needed, others, what):
    missing = [name for name in needed if name not in given]
    if missing:
        raise TypeError(f"select() about {what} needs {', '.join(missing)}")
    wrong = [name for name in others if name in given]
    if wrong:
        raise TypeError(f"select() about {what} takes no {', '.join(wrong)}")


def _experts_per_rank(experts, ep_size):
    if experts is None:
        return 1
    each, rest = divmod(experts, ep_size)
    if rest or each < 1:
        raise ValueError(f"experts is {experts}; it must be a multiple of ep_size, {ep_size}")
    return each
