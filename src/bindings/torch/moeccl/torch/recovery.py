"""Going on after an error in the middle of a pass."""

import threading

import torch.distributed as dist

from .experts import layers
from .grid import grids_on, revoke

_PATIENCE = 1.0  # seconds until ranks that have not come are told


def recover(group=None):
    """Makes the exchanges of all layers on a process group anew, after an error in the middle of a pass.

        try:
            train_step()
        except RuntimeError:
            moeccl.torch.recover()
            optimizer.zero_grad()

    Collective over the group; None: the default one. An error in the middle of a pass breaks it on all ranks, and layers stay
    broken until all ranks have called this. Modules, parameters and optimizers stay as they are. Outputs of earlier passes
    have no gradients any more. A rank that is lost, or a process group that is broken itself, takes more:
    destroy_process_group and init_process_group, and new layers.
    """
    group = group if group is not None else dist.group.WORLD
    for layer in layers():
        if layer.grid.group is group:
            layer.forget()
    grids = grids_on(group)
    # A rank may have left a pass in which others wait still, as where it caught an error of a backward pass.
    sets = [each for grid in grids for each in grid.sets]
    timer = threading.Timer(_PATIENCE, revoke, [sets, f"rank {group.rank()} of the process group left a pass for "
                                                "moeccl.torch.recover()"])
    timer.start()
    try:
        for grid in grids:
            grid.renew()
    finally:
        timer.cancel()
