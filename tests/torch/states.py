"""state_dicts of models whose experts are spread over ranks: saved on some ranks, loaded on others, gathered.

    torchrun --nproc-per-node 4 tests/torch/states.py [CHECK...]

Weights are random, nothing is downloaded.
"""

import contextlib
import copy
import itertools
import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from expert_models import EMBEDDING, EXPERTS, Expert, Model, Stack, Whole, local_experts, norm, tokens_of
from harness import check, folder, main, raises
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_state_dict,
                                                     set_model_state_dict, set_state_dict)
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig
from transformers.utils.logging import disable_progress_bar

import moeccl.torch

GRIDS = ({}, {"ep_size": 2}, {"ep_size": 1})
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
FULL = StateDictOptions(full_state_dict=True)


class Loss(torch.nn.Module):
    """A model whose experts have other values than those that they are made with."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens):
        return self.inner(tokens)


def in_list(options):
    experts = torch.nn.ModuleList(local_experts(options, Expert))
    cut = {"shard_dims": {"*.first": 1, "*.second": 0}} if options.get("esp_size", 1) > 1 else {}
    return Loss(Model(experts, **options, **cut))


def in_stack(options):
    local = EXPERTS // options.get("ep_size", WORLD)
    first = RANK % options.get("ep_size", WORLD) * local
    adapter = torch.nn.Parameter(torch.zeros(EMBEDDING, EMBEDDING, dtype=torch.float64))
    return Loss(Model(Stack(range(first, first + local), norm(), adapter), expert_dims={"adapter": None, "norm.*": None},
                      **options))


def whole_list():
    return Loss(Whole(torch.nn.ModuleList(Expert(each) for each in range(EXPERTS))))


def whole_stack():
    adapter = torch.nn.Parameter(torch.zeros(EMBEDDING, EMBEDDING, dtype=torch.float64))
    return Loss(Whole(Stack(range(EXPERTS), norm(), adapter)))


def train(model, optimizer, steps, first=0):
    parallel = torch.nn.parallel.DistributedDataParallel(moeccl.torch.exclude_experts(model))
    for step in range(first, first + steps):
        optimizer.zero_grad()
        (parallel(tokens_of(RANK, step)) - 1).square().mean().backward()
        optimizer.step()


def output(model):
    with torch.no_grad():
        return model(tokens_of(RANK, 99))


def as_in_one_process(state_dict):
    """The names of a model without a layer of moeccl's."""
    return {name.replace("inner.layer.experts", "inner.experts"): each for name, each in state_dict.items()
            if not name.startswith("inner.layer.gate") and name != "inner.unused"}


KINDS = ((in_list, whole_list), (in_stack, whole_stack))


@check
def saved_on_some_ranks_and_loaded_on_others():
    for spread, whole in KINDS:
        for options in GRIDS + (({"ep_size": 2, "esp_size": 2},) if spread is in_list else ()):
            model = spread(options)
            train(model, torch.optim.Adam(model.parameters(), 1e-2), 3)
            wanted = output(model)
            with folder() as path:
                dcp.save({"model": model.state_dict()}, checkpoint_id=path)
                for others in GRIDS:
                    other = spread(others)
                    state = {"model": other.state_dict()}
                    dcp.load(state, checkpoint_id=path)
                    other.load_state_dict(state["model"])
                    assert torch.allclose(output(other), wanted, rtol=1e-12, atol=1e-13), (options, others)
                one = whole()
                state = as_in_one_process(one.state_dict())
                wide = {name.replace("inner.experts", "inner.layer.experts"): each for name, each in state.items()}
                dcp.load({"model": wide}, checkpoint_id=path, no_dist=True)
                assert torch.allclose(output(one), wanted, rtol=1e-12, atol=1e-13), options


def alone(spread):
    """The model in a process of its own."""
    return spread({"ep_size": 1, "group": OWN})


def train_alone(model, optimizer, steps, first):
    """As all ranks train together."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for batch in range(WORLD):
            ((model(tokens_of(batch, step)) - 1).square().mean() / WORLD).backward()
        optimizer.step()


def states_of(model, optimizer, options):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options)))


def adam(model, groups=1):
    """With one group of parameters, or one more of experts."""
    experts = moeccl.torch.expert_parameters(model)
    others = [each for each in model.parameters() if each not in experts]
    return torch.optim.Adam(model.parameters() if groups == 1 else [
        dict(params=others), dict(params=[each for each in model.parameters() if each in experts], lr=2e-2)], 1e-2)


@check
def optimizers_too():
    """Training goes on, on another number of ranks per set of experts and in one process, as if nothing had been."""
    for (spread, _), options, groups in itertools.product(KINDS, (FLAT, None), (1, 2)):
        # Without FLAT ranks' groups are one rank's, and other ranks' names of experts are not among them.
        if options is None and groups == 2:
            continue
        for sizes in ({}, {"ep_size": 2, "esp_size": 2}) if spread is in_list else ({},):
            model = spread(sizes)
            optimizer = adam(model, groups)
            train(model, optimizer, 3)
            with folder() as path:
                dcp.save(states_of(model, optimizer, options), checkpoint_id=path)
                train(model, optimizer, 3, 3)
                for others in ({}, {"ep_size": 2}, None, *([sizes] if sizes else [])):
                    other = alone(spread) if others is None else spread(others)
                    later = adam(other, groups)
                    state = states_of(other, later, options)
                    dcp.load(state, checkpoint_id=path, no_dist=others is None)
                    set_state_dict(other, later, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
                                   options=options)
                    (train_alone if others is None else train)(other, later, 3, 3)
                    what = spread.__name__, options, groups, sizes, others
                    assert torch.allclose(output(other), output(model), rtol=1e-9, atol=1e-11), what
                    if others is None:
                        dist.barrier()
            # Its own state_dict, back and forth, and into a new one.
            with moeccl.torch.own_experts() if sizes else contextlib.nullcontext():
                state = copy.deepcopy(optimizer.state_dict())
            before = [each.clone() for entry in optimizer.state.values() for each in entry.values()]
            train(model, optimizer, 1)
            optimizer.load_state_dict(state)
            after = [each for entry in optimizer.state.values() for each in entry.values()]
            assert all(torch.equal(*pair) for pair in zip(before, after))
            copied = copy.deepcopy(model)
            fresh = adam(copied, groups)
            fresh.load_state_dict(copy.deepcopy(state))
            train(model, optimizer, 2)
            train(copied, fresh, 2)
            assert torch.equal(output(copied), output(model)), (spread.__name__, options, groups, sizes)


@check
def numbers_that_mean_other_experts_are_refused():
    """An optimizer's own state_dict has numbers for names, and of a list each rank has other experts."""
    for options in ({"ep_size": 2, "esp_size": 2}, {}):
        model = in_list(options)
        optimizer = adam(model, 2)
        train(model, optimizer, 1)
        for copied, save in ((False, dcp.save), (True, dcp.save), (False, saved_beside)):
            with folder() as path:
                state = optimizer.state_dict()
                state = copy.deepcopy(state) if copied else state
                text = fails(lambda: save({"optimizer": state}, checkpoint_id=path))
                assert "optimizer.state." in text and ".first" in text and "get_optimizer_state_dict" in text, text
    with folder() as path:
        # One file for each rank has them, as plain tensors.
        own = optimizer.state_dict()
        torch.save(own, f"{path}/rank{RANK}.pt")
        again = torch.load(f"{path}/rank{RANK}.pt")
        assert all(type(each) is torch.Tensor for entry in again["state"].values() for each in entry.values())
        optimizer.load_state_dict(again)
        # Groups whose names are one rank's.
        dcp.save(states := states_of(model, optimizer, None), checkpoint_id=f"{path}/groups")
        dcp.load(states, checkpoint_id=f"{path}/groups")
        try:
            set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
            told = torch.zeros(1)
        except ValueError as error:
            assert "parameter group 1" in str(error) and "flatten_optimizer_state_dict" in str(error), error
            told = torch.ones(1)
        dist.all_reduce(told)
        assert told == WORLD - 1, told
    # In one module their numbers are the same everywhere.
    model = in_stack({})
    optimizer = adam(model)
    train(model, optimizer, 1)
    kept = copy.deepcopy(optimizer.state_dict())
    with folder() as path:
        dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=path)
        train(model, optimizer, 1)
        state = {"optimizer": optimizer.state_dict()}
        dcp.load(state, checkpoint_id=path)
        optimizer.load_state_dict(state["optimizer"])
    for one, other in zip(optimizer.state_dict()["state"].values(), kept["state"].values()):
        assert all(torch.equal(local(one[key]), local(other[key])) for key in one)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saved_beside(state, checkpoint_id):
    dcp.async_save(state, checkpoint_id=checkpoint_id, process_group=BESIDE).result()


def fails(call):
    """The text of the exception that torch.distributed.checkpoint raises, which is none of Exception's."""
    try:
        call()
    except dcp.api.CheckpointException as error:
        return str(error)
    raise AssertionError("no error")


@check
def saved_beside_training():
    """By async_save, which copies the values first."""
    for spread, _ in KINDS:
        model = spread({"ep_size": 2})
        optimizer = adam(model)
        train(model, optimizer, 2)
        with folder() as path:
            saved = dcp.async_save(states_of(model, optimizer, FLAT), checkpoint_id=path, process_group=BESIDE)
            train(model, optimizer, 2, 2)
            saved.result()
            other = spread({})
            later = adam(other)
            state = states_of(other, later, FLAT)
            dcp.load(state, checkpoint_id=path)
            set_state_dict(other, later, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=FLAT)
        train(other, later, 2, 2)
        assert torch.allclose(output(other), output(model), rtol=1e-9, atol=1e-11), spread.__name__


@check
def gathered():
    for spread, whole in KINDS:
        for options in GRIDS + (({"ep_size": 2, "esp_size": 2},) if spread is in_list else ()):
            model = spread(options)
            train(model, torch.optim.Adam(model.parameters(), 1e-2), 2)
            full = get_model_state_dict(model, options=FULL)
            one = whole()
            one.load_state_dict(as_in_one_process(full))
            assert torch.allclose(output(one), output(model), rtol=1e-12, atol=1e-13), (spread.__name__, options)
            offloaded = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            assert sorted(offloaded) == (sorted(full) if RANK == 0 else [])
            # A model of all loads into one that is spread.
            other = spread(options)
            set_model_state_dict(other, full, options=FULL)
            assert torch.equal(output(other), output(model))
            other = spread(options)
            other.load_state_dict(full)
            assert torch.equal(output(other), output(model))


@check
def what_else_takes_state_dicts():
    for spread, _ in KINDS:
        model, other = spread({"ep_size": 2}), spread({"ep_size": 2})
        train(model, torch.optim.SGD(model.parameters(), 1e-1), 1)
        assert not torch.equal(output(model), output(other))
        # Strict; then one that is missing, and one that is too much.
        state = model.state_dict()
        other.load_state_dict(state)
        assert torch.equal(output(model), output(other))
        key = [name for name, _ in other.named_parameters() if "experts" in name][-1]
        raises(lambda: other.load_state_dict({name: each for name, each in state.items() if name != key}), key)
        raises(lambda: other.load_state_dict({**state, "inner.layer.experts.99.first": torch.ones(1)}), "99")
        # Copies of all values, an average of them, a file per rank.
        average = {name: 0.5 * each + 0.5 * copied for (name, each), copied in
                   zip(state.items(), copy.deepcopy(state).values())}
        other.load_state_dict(average)
        assert torch.allclose(output(model), output(other))
        shadow = torch.optim.swa_utils.AveragedModel(model)
        shadow.update_parameters(model)
        assert torch.equal(output(shadow), output(model))
        assert torch.equal(output(copy.deepcopy(model)), output(model))
        with folder() as path:
            with moeccl.torch.own_experts():
                own = model.state_dict()
            assert not any(isinstance(each, DTensor) for each in own.values())
            assert sorted(own) == sorted(name for name, _ in model.named_parameters(remove_duplicate=False))
            torch.save(own, f"{path}/rank{RANK}.pt")
            other = spread({"ep_size": 2})
            other.load_state_dict(torch.load(f"{path}/rank{RANK}.pt"))
            assert torch.equal(output(model), output(other))


@check
def files_of_one_rank_lose_no_experts():
    """What torch.save would keep of one rank is refused; within own_experts() it is what was asked for."""
    for spread in (in_list, in_stack):
        model = spread({})
        with folder() as path:
            for state in (model.state_dict(), get_model_state_dict(model)):
                for save in (pickle.dumps, lambda each: torch.save(each, f"{path}/rank{RANK}.pt")):
                    try:
                        save(state)
                        raise AssertionError("one rank's experts were saved for all")
                    except TypeError as error:
                        assert "full_state_dict" in str(error) and "own_experts" in str(error), error
            torch.save(get_model_state_dict(model, options=FULL), f"{path}/rank{RANK}.pt")


@check
def shards_must_be_told():
    options = {"ep_size": 2, "esp_size": 2}
    model = Model(torch.nn.ModuleList(local_experts(options, Expert)), **options)
    raises(model.state_dict, "shard_dims", "first")
    with moeccl.torch.own_experts():
        model.load_state_dict(model.state_dict())


def tiny(kind):
    small = dict(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, num_experts_per_tok=2, max_position_embeddings=64)
    config = MixtralConfig(num_local_experts=EXPERTS, **small) if kind == "mixtral" else \
        Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=24, head_dim=8, norm_topk_prob=True, **small)
    torch.manual_seed(4)
    return AutoModelForCausalLM.from_config(config)


@check
def models_of_transformers():
    data = torch.arange(16).reshape(2, 8)
    for kind in ("mixtral", "qwen3"):
        for options in ({}, {"ep_size": 2}):
            model = moeccl.torch.replace_transformers(tiny(kind), **options)
            for parameter in model.parameters():
                parameter.data += 0.01
            wanted = model(input_ids=data).logits
            names = {name for name, _ in tiny(kind).named_parameters()}
            assert {name for name, _ in model.named_parameters()} == names
            with folder() as path:
                model.save_pretrained(path, is_main_process=RANK == 0)
                dist.barrier()
                again = AutoModelForCausalLM.from_pretrained(path)
                assert torch.allclose(again(input_ids=data).logits, wanted, atol=1e-6), kind
                spread = moeccl.torch.replace_transformers(again)
                assert torch.allclose(spread(input_ids=data).logits, wanted, atol=1e-6), kind
            # One rank alone saves, while the others go on: nobody waits.
            with folder() as path:
                raises(lambda: model.save_pretrained(path) if RANK == 0 else model(input_ids=data), "gathering", "forward pass")
            full = get_model_state_dict(model, options=FULL)
            other = tiny(kind)
            other.load_state_dict(full)
            assert torch.allclose(other(input_ids=data).logits, wanted, atol=1e-6), kind


def start():
    global WORLD, RANK, OWN, BESIDE
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    OWN = dist.new_group([RANK], use_local_synchronization=True)
    BESIDE = dist.new_group(list(range(WORLD)))
    disable_progress_bar()


if __name__ == "__main__":
    main(start)
