"""A rank is killed in the middle of a layer: all others raise an error that names it, within 2 s, and go on without it.

    python tests/torch/killed_rank.py [RANKS]
"""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import moeccl.torch

DETECTED_S = 2
VICTIM = 1


class Killing(torch.nn.Module):
    """An expert that kills its process at its third call."""

    def __init__(self, victim):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.calls, self.victim = 0, victim

    def forward(self, rows):
        self.calls += 1
        if self.victim and self.calls == 3:
            killed = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            with open(os.environ["KILLED_AT"], "w") as file:
                file.write(str(killed))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(rows)


def step(layer, ranks):
    tokens = torch.randn(20, 8, requires_grad=True)
    indices = torch.stack([torch.randperm(ranks)[:2] for _ in range(20)])
    layer(tokens, indices, torch.full((20, 2), 0.5)).square().mean().backward()


def work(rank, ranks, ports):
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("cpu:moeccl", init_method=f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=ranks,
                            timeout=timeout)
    layer = moeccl.torch.MoE(torch.nn.ModuleList([Killing(rank == VICTIM)]))
    try:
        for _ in range(5):
            step(layer, ranks)
    except dist.DistBackendError as error:
        raised = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        with open(os.environ["KILLED_AT"]) as file:
            late = (raised - int(file.read())) / 1e9
        assert f"rank {VICTIM} " in str(error) or f"rank {VICTIM}:" in str(error), error
        assert late < DETECTED_S, f"rank {rank} noticed after {late:.2f} s"
        if rank == 0:
            print(f"after {late:.2f} s: {error}", flush=True)
    else:
        raise AssertionError(f"rank {rank} has noticed nothing")
    # The survivors go on.
    del layer
    dist.destroy_process_group()
    survivor, survivors = rank - (rank > VICTIM), ranks - 1
    dist.init_process_group("cpu:moeccl", init_method=f"tcp://127.0.0.1:{ports[1]}", rank=survivor,
                            world_size=survivors, timeout=timeout)
    step(moeccl.torch.MoE(torch.nn.ModuleList([Killing(False)])), survivors)
    dist.barrier()
    dist.destroy_process_group()


def free_ports(count):
    stores = [dist.TCPStore("127.0.0.1", 0, 1, True) for _ in range(count)]
    return [store.port for store in stores]


def main():
    import tempfile

    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KILLED_AT"] = os.path.join(folder, "killed")
        ports = free_ports(2)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=work, args=(rank, ranks, ports)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    codes = [process.exitcode for process in processes]
    wanted = [-signal.SIGKILL if rank == VICTIM else 0 for rank in range(ranks)]
    if codes != wanted:
        sys.exit(f"processes ended with {codes}, not {wanted}")
    print(f"{ranks - 1} of {ranks} ranks went on")


if __name__ == "__main__":
    main()
