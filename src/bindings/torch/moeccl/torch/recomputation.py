"""Passes that a checkpoint computes again: torch.utils.checkpoint with use_reentrant=False.

A checkpoint drops what a layer has saved for its gradients, and calls the layer again for it. The second call's rows go where the
first one's went. So the pass is kept beside the checkpoint, which lives as long as the graph, and only rows are exchanged again.
"""

import inspect
import weakref

import torch

_kept = weakref.WeakKeyDictionary()  # by checkpoint and layer: of each call, in their order
_taken = weakref.WeakKeyDictionary()  # by a recomputation's hook and layer: how many calls there were


def _hook_and_names():
    """The hook by which the innermost checkpoint around the caller sees saved tensors, and what that refers to."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None or not getattr(hooks[0], "_checkpoint_internal", False):
        return None, {}
    function = inspect.unwrap(hooks[0])
    return hooks[0], dict(zip(function.__code__.co_freevars, (each.cell_contents for each in function.__closure__)))


def keep(layer, make):
    """In a layer's call, but one that is computed again: keeps what make() returns, if a checkpoint is around it."""
    frame = _hook_and_names()[1].get("frame")
    if frame is not None:
        _kept.setdefault(frame, {}).setdefault(layer.id, []).append(make())


def kept(layer):
    """In a call that is computed again, what was kept of the first one; else None."""
    hook, names = _hook_and_names()
    if "target_frame_ref" not in names or torch._C._current_graph_task_id() == -1:
        return None
    calls = _kept.get(names["target_frame_ref"](), {}).get(layer.id, [])
    taken = _taken.setdefault(hook, {})
    place = taken[layer.id] = taken.get(layer.id, -1) + 1
    return calls[place] if place < len(calls) else None
