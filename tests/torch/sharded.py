"""Experts that fully_shard has cut among the ranks that hold the same ones train as under DistributedDataParallel.

    torchrun --nproc-per-node 4 tests/torch/sharded.py [CHECK...]
"""

import itertools

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from expert_models import EMBEDDING, EXPERTS, Expert, Model, local_experts, tokens_of
from harness import check, folder, main, raises
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import moeccl.torch

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
FULL = StateDictOptions(full_state_dict=True)
BOUND = {torch.float64: 1e-10, torch.float32: 1e-6}


class Together(torch.nn.Module):
    """Experts computed together, none of which is called where it has no rows."""

    def __init__(self, experts):
        super().__init__()
        self.first = torch.nn.Parameter(torch.stack([each.first.detach() for each in experts]))
        self.second = torch.nn.Parameter(torch.stack([each.second.detach() for each in experts]))

    def forward(self, rows, begins):
        parts = [torch.tanh(rows[begin:end] @ first) @ second
                 for first, second, begin, end in zip(self.first, self.second, begins, begins[1:]) if end > begin]
        return torch.cat(parts) if parts else torch.zeros_like(rows)


def made(together, dtype, **options):
    experts = local_experts(options, Expert)
    return Model(Together(experts) if together else torch.nn.ModuleList(experts), **options).to(dtype)


def sharded(model):
    layer = model.layer
    mesh = layer.replica_mesh
    assert mesh.mesh.tolist() == layer.grid.replica_ranks
    for each in layer.experts if isinstance(layer.experts, torch.nn.ModuleList) else [layer.experts]:
        fully_shard(each, mesh=mesh)
    return fully_shard(model, mesh=dist.init_device_mesh("cpu", (WORLD,)))


def parallel(model):
    return DistributedDataParallel(moeccl.torch.exclude_experts(model))


def batch(step, dtype):
    """Few tokens at some steps, so that ranks and experts have no rows, and on some ranks none."""
    tokens = tokens_of(RANK, step).to(dtype)
    return tokens[:RANK % 2] if step % 4 == 1 else tokens[:1].expand(20, -1) if step % 4 == 2 else tokens


def trained(model, optimizer, steps, dtype, call=None):
    """Losses and norms."""
    seen = []
    for step in steps:
        tokens = batch(step, dtype)
        optimizer.zero_grad()
        loss = 30 * ((call or model)(tokens) - tokens.sin()).square().sum() / 20
        loss.backward()
        seen += [loss.detach(), moeccl.torch.clip_grad_norm_(model.parameters(), 1.0)]
        optimizer.step()
    return torch.stack(seen)


def bare(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def whole(model):
    return get_model_state_dict(bare(model), options=FULL)


def same(ours, theirs, what, most):
    assert ours.keys() == theirs.keys(), (what, ours.keys() ^ theirs.keys())
    for name, each in theirs.items():
        off = (ours[name] - each).abs().max().item()
        assert ours[name].shape == each.shape and off < most, f"{what}: {name} is off by {off}"


def grids():
    return [{"ep_size": each} for each in (1, 2, 4) if WORLD % each == 0 and each <= WORLD]


@check
def experts_over_their_replicas():
    for dtype, most in BOUND.items():
        for options in grids() if dtype == torch.float32 else ({"ep_size": 2},):
            for together in (False, True):
                what = f"{dtype}, {options}, together: {together}"
                models = [sharded(made(together, dtype, **options)), parallel(made(together, dtype, **options))]
                ours, theirs = (trained(each, torch.optim.Adam(each.parameters(), 1e-2), range(8), dtype) for each in models)
                assert (ours - theirs).abs().max() < most * theirs.abs().max(), (what, ours - theirs)
                cut = [each for each in models[0].layer.experts.parameters() if isinstance(each, DTensor)]
                assert len(cut) == len(list(models[0].layer.experts.parameters()))
                same(whole(models[0]), whole(models[1]), what, 10 * most)


@check
def chunks_and_shared_experts():
    """Experts run once for each chunk, and FSDP adds up what each run's gradients are; of shared experts all ranks have parts."""
    for options, again in itertools.product(grids(), (False, True)):
        for together in (False, True):
            what, dtype = f"{options}, together: {together}, again: {again}", torch.float64
            models = [shard(made(together, dtype, chunks=3, shared_experts=Expert(99), **options)) for shard in (sharded, parallel)]
            calls = [lambda tokens, model=model: checkpoint(model, tokens, use_reentrant=False) if again else model(tokens)
                     for model in models]
            ours, theirs = (trained(model, torch.optim.Adam(model.parameters(), 1e-2), range(8), dtype, call)
                            for model, call in zip(models, calls))
            assert (ours - theirs).abs().max() < 1e-10 * theirs.abs().max(), (what, ours - theirs)
            cut = [name for name, each in models[0].named_parameters() if isinstance(each, DTensor)]
            assert "layer.shared_experts.first" in cut, cut
            same(whole(models[0]), whole(models[1]), what, 1e-9)


@check
def checkpoints_in_them():
    """Layers that are computed again, too."""
    for together in (False, True):
        models = [sharded(made(together, torch.float32, ep_size=2)), parallel(made(together, torch.float32, ep_size=2))]
        calls = [lambda tokens, model=model: checkpoint(model, tokens, use_reentrant=False) for model in models]
        ours, theirs = (trained(model, torch.optim.Adam(model.parameters(), 1e-2), range(6), torch.float32, call)
                        for model, call in zip(models, calls))
        assert (ours - theirs).abs().max() < 1e-6 * theirs.abs().max(), (together, ours - theirs)


def saved(model, optimizer):
    return {"model": get_model_state_dict(bare(model)),
            "optimizer": get_optimizer_state_dict(bare(model), optimizer, options=FLAT)}


@check
def saved_and_loaded():
    """With their optimizer, from experts that are cut to others that are or are not, for another ep_size."""
    dtype = torch.float64
    for together in (False, True):
        kinds = [(sharded, each) for each in grids()] + [(parallel, {"ep_size": 2})]
        for shard, options in kinds:
            model = shard(made(together, dtype, **options))
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            trained(model, optimizer, range(3), dtype)
            with folder() as path:
                dcp.save(saved(model, optimizer), checkpoint_id=path)
                wanted = trained(model, optimizer, range(3, 6), dtype)
                for other_shard, others in kinds:
                    other = other_shard(made(together, dtype, **others))
                    later = torch.optim.Adam(other.parameters(), 1e-2)
                    state = saved(other, later)
                    dcp.load(state, checkpoint_id=path)
                    set_model_state_dict(bare(other), state["model"])
                    set_optimizer_state_dict(bare(other), later, state["optimizer"], options=FLAT)
                    ours = trained(other, later, range(3, 6), dtype)
                    off = (ours - wanted).abs().max().item()
                    assert off < 1e-9, f"together: {together}, {options} to {others}, {other_shard.__name__}: off by {off}"
        # A whole model, before it is cut, and own experts.
        full = whole(model)
        other = made(together, dtype, ep_size=2)
        other.load_state_dict(full)
        same(whole(sharded(other)), full, "a whole model", 1e-15)
        with moeccl.torch.own_experts():
            own = {name: each.clone() for name, each in other.state_dict().items()}
        other.load_state_dict(own)
        same(whole(other), full, "own experts", 1e-15)


@check
def what_is_refused():
    """With what to pass instead."""
    model = made(True, torch.float32, ep_size=2)
    fully_shard(model.layer, mesh=model.layer.replica_mesh)
    text = raises(lambda: model(batch(0, torch.float32)), "gate's parameter weight")
    assert "fully_shard(layer.experts, mesh=layer.replica_mesh)" in text, text
    model = made(True, torch.float32, ep_size=2, shared_experts=Expert(99))
    for each in (model.layer.experts, model.layer.shared_experts):
        fully_shard(each, mesh=model.layer.replica_mesh)
    raises(lambda: model(batch(0, torch.float32)), "shared_experts' parameter first", "mesh=layer.replica_mesh")
    model = made(True, torch.float32, ep_size=2)
    fully_shard(model.layer.experts, mesh=dist.init_device_mesh("cpu", (WORLD,)))
    raises(lambda: model(batch(0, torch.float32)), "first", f"over the ranks {list(range(WORLD))}", "mesh=layer.replica_mesh")
    raises(model.state_dict, "first", "mesh=layer.replica_mesh")
    model = sharded(made(True, torch.float16, ep_size=2))
    raises(lambda: model(torch.ones(3, EMBEDDING, dtype=torch.float16)), "float16", "ignored_params")
    experts = Together(local_experts({"ep_size": 2}, Expert))
    experts.adapter = torch.nn.Parameter(torch.zeros(2, 2))
    model = Model(experts, ep_size=2, expert_dims={"adapter": None})
    fully_shard(experts, mesh=model.layer.replica_mesh)
    raises(lambda: model(tokens_of(RANK, 0)), "adapter", "share", "ignored_params")


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    assert EXPERTS % WORLD == 0


if __name__ == "__main__":
    main(start)
