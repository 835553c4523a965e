import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import moeccl.torch

dist.init_process_group("cpu:moeccl")
rank, ranks = dist.get_rank(), dist.get_world_size()


def expert():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))


torch.manual_seed(rank)  # each rank's experts differ
experts = torch.nn.ModuleList(expert() for _ in range(8 // ranks))
gate = torch.nn.Linear(16, 8)  # DistributedDataParallel makes all ranks' the same, and shared experts

model = moeccl.torch.MoE(experts, gate, top_k=2, chunks=4, shared_experts=expert())
model = DistributedDataParallel(moeccl.torch.exclude_experts(model))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)

for step in range(101):
    tokens = torch.randn(256, 16)
    loss = (model(tokens) - tokens.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moeccl.torch.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 0 and step % 50 == 0:
        print(f"step {step}: loss {loss.item():.2f}")
dist.destroy_process_group()
