"""State of optimizers in the form of state_dicts: part of that of all ranks, where a parameter holds several experts.

torch.optim has hooks on every optimizer's steps, and on one optimizer's state_dict. An optimizer that steps experts'
parameters gets the latter by the former: also where torch.distributed.checkpoint makes a new optimizer's state.
"""

import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .experts import owners
from .state import local_part, own_alone, spread

_seen = weakref.WeakSet()


def _parameters(optimizer):
    return [each for group in optimizer.param_groups for each in group["params"]]


def _converted(optimizer, state_dict, convert):
    """A copy, in which convert(layer, name, tensor) made what optimizers keep for each element of a parameter."""
    known, state = owners(), dict(state_dict["state"])
    numbers = [each for group in state_dict["param_groups"] for each in group["params"]]  # or names
    for number, parameter in zip(numbers, _parameters(optimizer)):
        layer, name = known.get(id(parameter), (None, None))
        if number in state and layer is not None and layer.whole_states and layer.places[name].dim is not None:
            state[number] = {key: convert(layer, name, each) if _is_tensor(each) else each
                             for key, each in state[number].items()}
    return {**state_dict, "state": state}


def _is_tensor(value):
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _save(optimizer, state_dict):
    return state_dict if own_alone() else _converted(optimizer, state_dict, spread)


def _load(optimizer, state_dict):
    return _converted(optimizer, state_dict, local_part)


def _after_step(optimizer, *_):
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    known = owners()
    if any(id(each) in known for each in _parameters(optimizer)):
        optimizer.register_state_dict_post_hook(_save)
        optimizer.register_load_state_dict_pre_hook(_load)


register_optimizer_step_post_hook(_after_step)
