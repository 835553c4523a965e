"""What gates add to a model's loss so that experts get about as many tokens each, and logits stay small."""

import torch


def load_balancing_loss(logits, indices):
    """num_experts * sum over experts of (part of the choices that it got) * (mean probability that it has): 1 where both are
    even, num_experts where one expert gets all (Switch Transformers, equation 4; with several choices per token each counts).

    logits [n, num_experts], of which gradients go to the gate; indices [n, k], -1: a choice that is not made. Of this rank's
    tokens; 0 where it has none.
    """
    experts = logits.shape[-1]
    counts = loads(indices, experts).to(torch.float32)
    probabilities = torch.softmax(logits.float(), -1).sum(0) / max(logits.shape[0], 1)
    return experts * (counts / counts.sum().clamp(min=1) * probabilities).sum()


def router_z_loss(logits):
    """The mean over tokens of log(sum(exp(logits)))^2 (ST-MoE, equation 5). Of this rank's tokens; 0 where it has none."""
    return torch.logsumexp(logits.float(), -1).square().sum() / max(logits.shape[0], 1)


def loads(indices, experts):
    """int64 [experts]: how many choices of the tokens are of each expert."""
    flat = indices.reshape(-1).long()
    made = flat >= 0
    return torch.zeros(experts, dtype=torch.long).index_add(0, flat.where(made, 0), made.long())
