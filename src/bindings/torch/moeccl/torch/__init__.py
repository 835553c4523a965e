"""Mixture-of-Experts layers of PyTorch over moeccl: any gate, any experts, on any grid of ranks.

    layer = moeccl.torch.MoE(experts, gate, ep_size=8)

See MoE; replace_transformers and replace_deepspeed do it to models that are there.
"""

from . import optimizer as _optimizer  # has hooks
from .clip import clip_grad_norm_, get_total_norm
from .experts import exclude_experts, expert_parameters
from .losses import load_balancing_loss, router_z_loss
from .moe import MoE
from .padding import skip_padding, valid_tokens
from .recovery import recover
from .registration import register_with_transformers
from .replace import replace_deepspeed, replace_transformers
from .route import Route
from .selection import select
from .state import own_experts

__all__ = ["MoE", "Route", "clip_grad_norm_", "exclude_experts", "expert_parameters", "get_total_norm",
           "load_balancing_loss", "own_experts", "recover", "replace_deepspeed", "replace_transformers", "router_z_loss",
           "select", "skip_padding", "valid_tokens"]

register_with_transformers()
