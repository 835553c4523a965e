"""What ranks tell each other before the exchanges of a pass: what they come with, or the error that keeps them from coming.

One small all-gather before a forward pass, and one before its backward pass. A rank that fails by itself before it sends
anything fails on all ranks at the same step; so do ranks that come with passes that do not match.
"""

import struct
from typing import NamedTuple

FORWARD, BACKWARD, AGAIN, GATHERING = range(4)
_TEXT = 304  # bytes of an error


class Coming(NamedTuple):
    """Whole numbers, and the same on all ranks but for tokens, which are so in an MP group."""

    kind: int
    layer: int
    of: int  # which of all that ranks told each other was of this pass' forward pass
    tokens: int
    embedding: int
    choices: int
    dtype: int
    training: int
    chunks: int = 1
    shared: int = 0


_NAMES = {"tokens": "tokens", "embedding": "elements per token", "choices": "experts per token",
          "dtype": "a datatype (of float32, float64, float16, bfloat16)", "training": "gradients (1: yes)",
          "chunks": "chunks", "shared": "shared_experts (1: yes)"}


def tell(grid, ranks, coming=None, error=None):
    """What the ranks of this rank's grid come with. ranks: the set that is told, the grid's or that and its replicas.
    error: this rank's own, instead; it is raised here, and what it says on all other ranks. Counts in grid.told."""
    grid.told[ranks] = grid.told.get(ranks, 0) + 1
    with grid.interruptible():
        what = _pass(coming) if coming is not None else f"a layer's call that failed on this rank ({type(error).__name__})"
        said = ranks.gather([int(error is not None), *(coming or Coming(*[0] * len(Coming._fields)))], what)
    failed = [rank for rank, numbers in enumerate(said) if numbers[0]]
    if failed:
        _raise(ranks, failed[0], error)
    all_coming = [Coming(*numbers[1:]) for numbers in said]
    _compare_passes(all_coming)
    own = all_coming[grid.first:grid.first + grid.size] if len(all_coming) > grid.size else all_coming
    if coming.kind in (FORWARD, AGAIN):
        _compare(own, grid.mp_size)
    return own


def _raise(ranks, first, error):
    text = f"{type(error).__name__}: {error}" if error is not None else ""
    packed = text.encode()[:_TEXT].ljust(_TEXT, b"\0")
    said = ranks.gather(list(struct.unpack(f"<{_TEXT // 8}q", packed)), "telling each other an error")
    if error is not None:
        raise error
    theirs = struct.pack(f"<{_TEXT // 8}q", *said[first]).rstrip(b"\0").decode(errors="ignore")
    raise RuntimeError(f"rank {first} of the layer's ranks failed before this pass: {theirs}")


def _compare_passes(said):
    for rank, each in enumerate(said):
        if each[:3] != said[0][:3]:
            raise RuntimeError("ranks call layers in different orders, or not all of them do: rank "
                               f"{rank} of the layer's ranks came to {_pass(each)}, rank 0 to {_pass(said[0])}")


def _pass(coming):
    if coming.kind == GATHERING:
        return "the gathering of all ranks' experts, which all of them call"
    kind = (f"the backward pass behind step {coming.of}" if coming.kind == BACKWARD else
            "a forward pass" if coming.kind == FORWARD else "a forward pass that a checkpoint computes again")
    return f"{kind} of layer {coming.layer} (in the order in which they were made)"


def _compare(said, mp_size):
    for rank, each in enumerate(said):
        for field, name in _NAMES.items():
            other = rank // mp_size * mp_size if field == "tokens" else 0
            if getattr(each, field) != getattr(said[other], field):
                raise ValueError(f"rank {rank} of the layer's grid came with {name}: {getattr(each, field)}, rank {other} "
                                 f"with {getattr(said[other], field)}; they must be the same"
                                 + (" in an MP group" if field == "tokens" else ""))
