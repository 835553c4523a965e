"""Mixture-of-Experts layers of PyTorch over moeccl: any gate, any experts, on any grid of ranks.

    layer = moeccl.torch.MoE(experts, gate, ep_size=8)

See MoE; replace_transformers and replace_deepspeed do it to models that are there.
"""

from .moe import MoE, exclude_experts
from .replace import replace_deepspeed, replace_transformers
from .selection import select

__all__ = ["MoE", "exclude_experts", "replace_deepspeed", "replace_transformers", "select"]
