"""What is the fastest, without a layer."""

import torch

from .. import _C
from .moe import type_of


def select(*, nodes, experts, top_k, embedding, hidden, tokens, mp_size=1, ep_size=None, esp_size=1, order="esp",
           capacity_factor=None, capacity_groups=None, dtype=torch.float32, training=True, profile=None, explain=False):
    """The schedules that a layer can follow on a cluster, which need not be here: the fastest as predicted first.

        select(nodes=[8, 8], experts=64, top_k=2, embedding=1024, hidden=4096, tokens=2048)[0].schedule

    nodes: ranks of each node. experts, of all ranks; hidden, of an expert with all its shards; tokens, of one rank (and
    those that share them). Others as for MoE. profile: the path of a profile made by moeccl-fit on the cluster, or on
    one with such nodes and links; None: typical links. training: forward and backward. Returns a list with schedule,
    seconds, communication (of these), bytes_between (that a rank sends to other nodes) and measured; with explain=True
    a text instead, with every term.
    """
    ranks = sum(nodes)
    choices, text = _C.predict(tokens, embedding, hidden, experts, top_k, float(capacity_factor or 0), capacity_groups or 0,
                               type_of(dtype), training, mp_size, ep_size or ranks // esp_size, esp_size, order == "ep",
                               list(nodes), profile or "")
    return text if explain else choices
