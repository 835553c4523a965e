"""What a layer cannot serve it refuses, by name, and says what would be right.

    torchrun --nproc-per-node 4 tests/torch/refusals.py [CHECK...]
"""

import torch
import torch.distributed as dist
from harness import check, main, raises
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

import moeccl.torch
from moeccl import _C

EMBEDDING = 6


class Model(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(RANK)
        local = 2 * WORLD // options.get("ep_size", WORLD)
        self.layer = moeccl.torch.MoE(torch.nn.ModuleList(torch.nn.Linear(EMBEDDING, EMBEDDING) for _ in range(local)),
                                      torch.nn.Linear(EMBEDDING, 2 * WORLD), top_k=2, **options)
        self.last = torch.nn.Linear(EMBEDDING, EMBEDDING)

    def forward(self, tokens):
        return self.last(tokens + self.layer(tokens))


def tokens_of(rank, step=0):
    return torch.randn(10, EMBEDDING, generator=torch.Generator().manual_seed(1000 * step + rank))


def fully_sharded(of, **options):
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    model = Model(**options)
    for module in of(model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    return model


@check
def experts_that_fsdp_cuts():
    for options in ({}, {"ep_size": 2}):
        for of in (lambda model: [model], lambda model: [model.layer], lambda model: model.layer.experts):
            model = fully_sharded(of, **options)
            raises(lambda: model(tokens_of(RANK)), "parameter", "weight", "expert_parameters(model)")
        # Nothing was sent before the refusal, so all ranks go on.
        dist.barrier()
        for original in (False, True):
            model = FullyShardedDataParallel(Model(**options), device_id=torch.device("cpu"), use_orig_params=original)
            raises(lambda: model(tokens_of(RANK)), "expert_parameters(model)")
    raises(lambda: moeccl.torch.MoE(torch.nn.ModuleList([cut_linear()])), "weight", "DTensor", "expert_parameters(model)")


def cut_linear():
    linear = torch.nn.Linear(WORLD, WORLD)
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    linear.weight = torch.nn.Parameter(DTensor.from_local(linear.weight.detach(), mesh, [Replicate()], run_check=False))
    return linear


@check
def experts_beside_fsdp():
    """Left out, they train as under DistributedDataParallel."""
    mesh = dist.init_device_mesh("cpu", (WORLD,))
    for options in ({}, {"ep_size": 2}):
        losses = []
        for shard in (False, True):
            torch.manual_seed(5)
            model = Model(**options)
            for parameter in (model.layer.gate, model.last):
                for each in parameter.parameters():
                    dist.broadcast(each.data, 0)
            if shard:
                ignored = moeccl.torch.expert_parameters(model)
                assert len(ignored) == 2 * len(model.layer.experts)
                fully_shard(model, mesh=mesh, ignored_params=ignored)
            else:
                model = torch.nn.parallel.DistributedDataParallel(moeccl.torch.exclude_experts(model))
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            seen = []
            for step in range(5):
                optimizer.zero_grad()
                loss = 30 * (model(tokens_of(RANK, step)) - tokens_of(RANK, step).sin()).square().mean()
                loss.backward()
                norm = moeccl.torch.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                seen += [loss.detach(), norm]
            losses.append(torch.stack(seen))
        assert torch.allclose(*losses, rtol=1e-5), losses


@check
def experts_that_ddp_averages():
    """Also where the model that leaves them out is part of another."""
    def around(model):
        return torch.nn.Sequential(moeccl.torch.exclude_experts(model))

    for options in ({}, {"ep_size": 2}):
        for model in (Model(**options), around(Model(**options))):
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            for _ in range(2):
                raises(lambda: parallel(tokens_of(RANK)), "parameter", "weight", f"on the ranks {list(range(WORLD))}", "exclude_experts(")
        torch.nn.parallel.DistributedDataParallel(moeccl.torch.exclude_experts(Model(**options)))(tokens_of(RANK)).sum().backward()
    # Over ranks that hold the same experts.
    model = Model(ep_size=2)
    torch.nn.parallel.DistributedDataParallel(model, process_group=model.layer.replica_mesh.get_group())(tokens_of(RANK)).sum().backward()


@check
def optimizers_that_step_parts():
    """Each on one rank, whose values all others get."""
    for options in ({}, {"ep_size": 2}):
        model = Model(**options)
        model(tokens_of(RANK)).square().sum().backward()
        before = [each.detach().clone() for each in model.layer.experts.parameters()]
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1e-2)
        for _ in range(2):
            raises(optimizer.step, "parameter", "weight", f"on the ranks {list(range(WORLD))}", "expert_parameters(model)")
        assert all(torch.equal(each, was) for each, was in zip(model.layer.experts.parameters(), before))
        ours = moeccl.torch.expert_parameters(model)
        ZeroRedundancyOptimizer([each for each in model.parameters() if each not in ours], torch.optim.SGD, lr=1e-2).step()
        same = ZeroRedundancyOptimizer(model.layer.experts.parameters(), torch.optim.SGD, lr=1e-2,
                                       process_group=model.layer.replica_mesh.get_group())
        same.step()
        for each, was in zip(model.layer.experts.parameters(), before):
            assert torch.allclose(each, was - 1e-2 * each.grad)


@check
def tensors_around_tensors():
    mesh = DeviceMesh("cpu", range(WORLD))
    layer = moeccl.torch.MoE(torch.nn.ModuleList([torch.nn.Identity()]))
    tokens, indices, weights = tokens_of(RANK), torch.full((10, 1), RANK), torch.ones(10, 1)
    for place in range(3):
        call = [tokens, indices, weights]
        call[place] = DTensor.from_local(call[place], mesh, [Shard(0)])
        raises(lambda: layer(*call), ("tokens", "indices", "weights")[place], "DTensor", "to_local()")
    # The result of an asynchronous collective is waited for.
    later = all_reduce(tokens, "sum", dist.group.WORLD)
    assert torch.equal(layer(later, indices, weights), later + 0)
    ranks = _C.RankSet(dist.group.WORLD._get_backend(torch.device("cpu")), list(range(WORLD)))
    for call in (ranks.average, ranks.broadcast):
        raises(lambda: call([DTensor.from_local(tokens, mesh, [Shard(0)])]), "DTensor", "to_local()")
    raises(lambda: ranks.average([torch.ones(3, device="meta")]), "meta")
    ranks.average([tokens])


@check
def transforms_of_torch_func():
    """Before anything is sent, so that all ranks go on."""
    layer, tokens = Model().layer, tokens_of(RANK)
    parameters = dict(layer.named_parameters())
    route = moeccl.torch.Route(num_experts=WORLD, top_k=1, hidden=EMBEDDING, dtype=torch.float32)
    call = torch.full((10, 1), RANK), torch.ones(10, 1)
    for transformed in (lambda: torch.func.grad(lambda tokens: layer(tokens).sum())(tokens),
                        lambda: torch.func.grad(lambda them: torch.func.functional_call(layer, them, (tokens,)).sum())(parameters),
                        lambda: torch.func.vmap(layer)(tokens[None]),
                        lambda: torch.func.grad(lambda tokens: route.dispatch(tokens, *call)[0].sum())(tokens)):
        raises(transformed, "torch.func", "backward()")
        layer(tokens).sum().backward()
        assert torch.equal(route.combine(*route.dispatch(tokens, *call)), tokens)
    # On one rank all are told.
    raises(lambda: torch.func.vmap(layer)(tokens[None]) if RANK == 1 else layer(tokens), "torch.func")


@check
def experts_without_memory():
    """Made on the device meta, and given values later; replicas are made equal then."""
    for options in ({}, {"ep_size": 2}):
        with torch.device("meta"):
            model = Model(**options)
        raises(lambda: call_layer(model.layer), "weight", "meta", "to_empty")
        model.to_empty(device="cpu")
        for place, each in enumerate(model.layer.experts.parameters()):
            torch.nn.init.constant_(each, RANK + place)
        call_layer(model.layer)
        first = model.layer.experts[0].weight
        assert (first == RANK % options.get("ep_size", WORLD)).all(), first


def call_layer(layer):
    return layer(tokens_of(RANK), torch.full((10, 1), RANK), torch.ones(10, 1))


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()


if __name__ == "__main__":
    main(start)
