"""Padding stays at home: tokens that no other token looks at are sent to no expert."""

import contextlib
import inspect

import torch

from .moe import MoE


class _Masks:
    """The masks of passes under way, for all layers of the process."""

    def __init__(self):
        self.current = None
        self.trained = []  # of the last forward passes with gradients, whose layers may be computed anew
        self.recomputed = False

    def enter(self, mask):
        self.current = mask
        if not torch.is_grad_enabled():
            return
        if self.recomputed:
            self.trained, self.recomputed = [], False
        self.trained = [*self.trained[-1:], mask]

    def of_this_pass(self):
        if torch._C._current_graph_task_id() == -1:
            return self.current
        # A layer is computed anew within a backward pass, long after its forward pass.
        self.recomputed = True
        if len(self.trained) == 2 and not _same(*self.trained):
            raise RuntimeError("activation checkpointing computes a layer anew, and two forward passes with other padding "
                               "came before; call backward after each forward pass, or pass attention_mask=None")
        return self.trained[-1] if self.trained else self.current


_masks = _Masks()


def _same(one, other):
    return one is other or (one is not None and other is not None and torch.equal(one, other))


@contextlib.contextmanager
def valid_tokens(mask):
    """Within it, layers in models of transformers send only tokens whose mask is not 0.

        with moeccl.torch.valid_tokens(mask):
            output = model(...)

    mask: [batch, length], as attention_mask is. Where a pass has fewer tokens, as in generation, its last columns
    count. What experts add to the others is 0. None: all tokens are sent.
    """
    if mask is not None and mask.dim() != 2:
        raise ValueError(f"mask is {tuple(mask.shape)}; it must be [batch, length]")
    before = _masks.current
    _masks.enter(mask)
    try:
        yield
    finally:
        _masks.current = before


def skip_padding(model):
    """Tokens that the model's attention_mask leaves out are sent to no expert. Returns the model.

    replace_transformers does it; call it for models loaded with ep_implementation="moeccl".
    """
    forward = model.forward
    names = list(inspect.signature(forward).parameters)
    place = names.index("attention_mask") if "attention_mask" in names else len(names)
    entered = []

    def before(module, arguments, named):
        mask = named.get("attention_mask", arguments[place] if place < len(arguments) else None)
        told = isinstance(mask, torch.Tensor) and mask.dim() == 2
        entered.append(valid_tokens(mask if told else _masks.current))
        entered[-1].__enter__()

    def after(module, arguments, result):
        entered.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, always_call=True)
    return model


def _without_padding(indices):
    mask = _masks.of_this_pass()
    if mask is None:
        return indices
    length, rest = divmod(len(indices), len(mask)) if len(mask) else (0, 1)
    if rest or length > mask.shape[1]:
        return indices  # of other tokens than the mask's
    valid = mask[:, mask.shape[1] - length:].reshape(-1, 1) != 0
    return indices if valid.all() else indices.where(valid, -1)


class UnpaddedMoE(MoE):
    """A layer that sends the tokens of valid_tokens alone."""

    def _checked_call(self, *given):
        tokens, indices, weights = super()._checked_call(*given)
        return tokens, _without_padding(indices), weights
