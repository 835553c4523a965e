"""The norm of all gradients, where each rank has other experts."""

import math
import struct

import torch
from torch.distributed.tensor import DTensor

from .experts import owners


def _norm(tensors, norm_type):
    """One norm of all the tensors, as a number."""
    if not tensors:
        return 0.0
    # 16-bit numbers are added in float32.
    norms = [torch.linalg.vector_norm(each, norm_type, dtype=torch.promote_types(each.dtype, torch.float32))
             for each in tensors]
    norms = [each.full_tensor() if isinstance(each, DTensor) else each for each in norms]
    return _of_numbers([each.item() for each in norms], norm_type)


def _of_numbers(norms, norm_type):
    return torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), norm_type).item()


def _over_ranks(grid, norm, norm_type):
    """Of all ranks that have other experts, or other shards of them; to the last bit the same on all of them."""
    said = grid.set.gather([struct.unpack("<q", struct.pack("<d", norm))[0]], "the norm of all ranks' experts")
    return _of_numbers([struct.unpack("<d", struct.pack("<q", number))[0] for (number,) in said], norm_type)


def _listed(tensors):
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.parameters()
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _total(parameters, gradients, norm_type):
    """Of the gradients, some of which may be None, of the parameters."""
    known = owners()
    whole, parts = [], {}  # of all ranks; by grid
    for parameter, gradient in zip(parameters, gradients):
        layer = known.get(id(parameter), (None,))[0]
        own = whole if layer is None else parts.setdefault(layer.grid, [])
        if gradient is not None:
            own.append(gradient)
    norms = [_norm(whole, norm_type)]
    # The order of parameters is the same on all ranks, and with it that of grids.
    norms += [_over_ranks(grid, _norm(part, norm_type), norm_type) for grid, part in parts.items()]
    given = [each for each in gradients if each is not None]
    dtype = torch.promote_types(given[0].dtype, torch.float32) if given else torch.float32
    return torch.tensor(_of_numbers(norms, norm_type), dtype=dtype, device=given[0].device if given else None)


def _check(norm_type, total, error_if_nonfinite):
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"the total norm of order {norm_type} of the gradients of all ranks' parameters is {total.item()}, "
                           "so they cannot be clipped; error_if_nonfinite=False scales them all the same")


@torch.no_grad()
def get_total_norm(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The norm of gradients, or of parameters, of which each rank has those of its own experts: as
    torch.nn.utils.get_total_norm, of one process that has all. Collective over the ranks of the model's MoE layers."""
    tensors = _listed(tensors)
    by_gradient = {id(parameter.grad): parameter for parameter in _all_parameters() if parameter.grad is not None}
    total = _total([by_gradient.get(id(each), each) for each in tensors], tensors, float(norm_type))
    _check(norm_type, total, error_if_nonfinite)
    return total


def _all_parameters():
    for layer in {layer for layer, _ in owners().values()}:
        yield from layer.experts.parameters()


@torch.no_grad()
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Scales the gradients of a model with MoE layers to a norm of at most max_norm, and returns what it was.

        moeccl.torch.clip_grad_norm_(model.parameters(), 1.0)

    As torch.nn.utils.clip_grad_norm_ of one process that has all experts: every expert, and every shard of one, counts
    once, and so does what all ranks have. All ranks get the same norm. Collective over the ranks of the layers, which
    bring parameters in the same order. The parameters may be a model.
    """
    parameters = _listed(parameters)
    total = _total(parameters, [each.grad for each in parameters], float(norm_type))
    _check(norm_type, total, error_if_nonfinite)
    by_mesh = {}  # operators take no mixture
    for each in parameters:
        by_mesh.setdefault(each.grad.device_mesh if isinstance(each.grad, DTensor) else None, []).append(each)
    for some in by_mesh.values():
        torch.nn.utils.clip_grads_with_norm_(some, max_norm, total, foreach)
    return total
