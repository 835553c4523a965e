"""State of optimizers in the form of state_dicts: part of that of all ranks where a parameter holds several experts, and bound
to its name where it belongs to one expert of a list.

torch.optim has hooks on every optimizer's steps, and on one optimizer's state_dict. An optimizer that steps experts'
parameters gets the latter by the former: also where torch.distributed.checkpoint makes a new optimizer's state.
"""

import sys
import weakref

import torch
from torch.distributed import get_process_group_ranks
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .experts import owners
from .state import listed, local_part, own_alone, spread

_seen = weakref.WeakSet()


def _parameters(optimizer):
    return [each for group in optimizer.param_groups for each in group["params"]]


def _changed(kept, convert, *of):
    """What an optimizer keeps of one parameter, its tensors but for numbers converted."""
    return {key: convert(*of, each) if isinstance(each, torch.Tensor) and each.dim() > 0 else each for key, each in kept.items()}


def _converted(optimizer, state_dict, convert):
    """A copy, in which convert(layer, name, tensor) made what optimizers keep for each element of a parameter."""
    known, state = owners(), dict(state_dict["state"])
    numbers = [each for group in state_dict["param_groups"] for each in group["params"]]  # or names
    for number, parameter in zip(numbers, _parameters(optimizer)):
        layer, name = known.get(id(parameter), (None, None))
        if number in state and layer is not None and layer.whole_states:
            state[number] = _changed(state[number], convert, layer, name)
    return {**state_dict, "state": state}


def _save(optimizer, state_dict):
    def convert(layer, name, tensor):
        return (listed if layer.places[name].dim is None else spread)(layer, name, tensor)

    return state_dict if own_alone() else _converted(optimizer, state_dict, convert)


def _load(optimizer, state_dict):
    for number, (own, given) in enumerate(zip(optimizer.param_groups, state_dict["param_groups"])):
        missing = [each for each in optimizer.defaults if each in own and each not in given]
        if missing:
            raise ValueError(
                f"parameter group {number} of the optimizer's state_dict has no {', '.join(missing)}. If its parameters are "
                "experts', the ranks' groups have different names, of which torch.distributed.checkpoint saves one rank's; get "
                "and set the state with StateDictOptions(flatten_optimizer_state_dict=True)")
    return _converted(optimizer, state_dict, local_part)


def _refuse_parts(optimizer, ours):
    """Raises where ZeroRedundancyOptimizer would overwrite experts by those of the rank that steps parameters at their place."""
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if zero is None or not isinstance(optimizer, zero.ZeroRedundancyOptimizer):
        return
    over = get_process_group_ranks(optimizer.process_group)
    for _, layer, name in ours:
        ranks = layer.replica_ranks()
        if not set(over) <= set(ranks):
            raise TypeError(
                f"ZeroRedundancyOptimizer has the experts' parameter {name}, and would make it the same on the ranks {over}; those that "
                f"hold the same experts are {ranks}. Give moeccl.torch.expert_parameters(model) to an optimizer of their own, and it "
                "the others")


def _before_step(optimizer, *_):
    if optimizer in _seen:
        return
    known = owners()
    ours = [(each, *known[id(each)]) for each in _parameters(optimizer) if id(each) in known]
    _refuse_parts(optimizer, ours)
    _seen.add(optimizer)
    if ours:
        optimizer.register_state_dict_post_hook(_save)
        optimizer.register_load_state_dict_pre_hook(_load)
    for parameter, layer, name in ours:  # a state_dict that was loaded before
        if parameter in optimizer.state:
            optimizer.state[parameter] = _changed(optimizer.state[parameter], local_part, layer, name)


register_optimizer_step_pre_hook(_before_step)
