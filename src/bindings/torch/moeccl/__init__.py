"""torch.distributed over moeccl.

    torch.distributed.init_process_group("cpu:moeccl")

is all that a program changes. CUDA tensors are served too ("cpu:moeccl,cuda:moeccl", or "moeccl").
"""

from datetime import timedelta

__all__ = ["register"]


def _create(options, pg_options):
    from . import _C

    ranks = list(options.global_ranks_in_group)
    timeout = options.timeout
    if pg_options is not None and getattr(pg_options, "_timeout", None):
        timeout = pg_options._timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    return _C.create(options.store, options.group_rank, options.group_size, timeout, ranks, options.group_id)


def register():
    """Makes the name "moeccl" known to torch.distributed. Called by torch itself where it loads plug-ins."""
    import torch.distributed

    if torch.distributed.is_available() and not hasattr(torch.distributed.Backend, "MOECCL"):
        torch.distributed.Backend.register_backend("moeccl", _create, extended_api=True, devices=["cpu", "cuda"])


register()
