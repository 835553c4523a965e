"""A tiny Mixtral of transformers, its experts spread over the ranks by one line, trains as one process does.

    torchrun --nproc-per-node 8 tests/torch/mixtral.py [CHECK...]

Each rank brings its own sequences; the one process takes those of all ranks one after the other. Weights are random,
nothing is downloaded.
"""

import os

import torch
import torch.distributed as dist
from harness import check, main, raises
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig, Qwen3MoeConfig

import moeccl.torch

STEPS, LAST = 200, 50
VOCABULARY, LENGTH, SEQUENCES = 32, 16, 2
SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, num_experts_per_tok=2, max_position_embeddings=64, output_router_logits=True)


def tiny(dtype, config=None):
    torch.manual_seed(11)
    config = config or MixtralConfig(num_local_experts=8, router_aux_loss_coef=0.02, **SMALL)
    # Its grouped products have no float64.
    options = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
    return AutoModelForCausalLM.from_config(config, **options).to(dtype)


def sequences(rank, step):
    """Each number follows from the one before it, but for one in eight."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    numbers = [torch.randint(VOCABULARY, (SEQUENCES,), generator=generator)]
    for _ in range(LENGTH - 1):
        noise = torch.randint(VOCABULARY, (SEQUENCES,), generator=generator)
        chance = torch.rand(SEQUENCES, generator=generator) < 1 / 8
        numbers.append(torch.where(chance, noise, (5 * numbers[-1] + 3) % VOCABULARY))
    return torch.stack(numbers, 1)


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), 3e-3)


def in_one_process(dtype):
    """The loss of each step."""
    model = tiny(dtype)
    optimizer = optimizer_of(model)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = []
        for rank in range(WORLD):
            data = sequences(rank, step)
            loss = model(input_ids=data, labels=data).loss
            (loss / WORLD).backward()
            parts.append(loss.detach())
        optimizer.step()
        losses.append(torch.stack(parts).mean().item())
    return losses


def spread(dtype, **options):
    model = moeccl.torch.replace_transformers(tiny(dtype), **options)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of(parallel)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        data = sequences(RANK, step)
        loss = parallel(input_ids=data, labels=data).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    all_losses = torch.stack(losses).double()
    dist.all_reduce(all_losses, dist.ReduceOp.AVG)
    return all_losses.tolist()


def reference(dtype):
    """Of one process: rank 0 computes it, the others wait."""
    holder = [in_one_process(dtype) if RANK == 0 else None]
    dist.broadcast_object_list(holder, 0)
    return holder[0]


def mean_of_last(losses):
    return sum(losses[-LAST:]) / LAST


@check
def float32_training():
    theirs = reference(torch.float32)
    assert mean_of_last(theirs) < theirs[0] - 1, theirs
    for options in ({}, {"ep_size": 2}):
        ours = spread(torch.float32, **options)
        off = abs(mean_of_last(ours) - mean_of_last(theirs))
        if RANK == 0:
            print(f"float32, {options or 'ep_size ' + str(WORLD)}: {STEPS} steps from {ours[0]:.3f} to a mean of "
                  f"{mean_of_last(ours):.4f} in the last {LAST}; one process {mean_of_last(theirs):.4f}", flush=True)
        assert off < 0.02, (off, ours, theirs)


@check
def float64_training():
    theirs, ours = reference(torch.float64), spread(torch.float64)
    off = max(abs(one - other) for one, other in zip(ours, theirs))
    if RANK == 0:
        print(f"float64: no step of {STEPS} is off by more than {off:.1e}", flush=True)
    assert off < 1e-6, (off, ours, theirs)


@check
def other_models():
    """One forward and backward pass of models whose blocks have more than a gate and experts."""
    for chunks, config in ((1, Qwen2MoeConfig(num_experts=8, moe_intermediate_size=24, shared_expert_intermediate_size=40,
                                              decoder_sparse_step=1, **SMALL)),
                           (3, Qwen3MoeConfig(num_experts=8, moe_intermediate_size=24, head_dim=8, norm_topk_prob=True, **SMALL))):
        model, whole = tiny(torch.float64, config), tiny(torch.float64, config)
        moeccl.torch.replace_transformers(model, chunks=chunks)
        data = sequences(RANK, 0)
        outputs = [each(input_ids=data, labels=data) for each in (model, whole)]
        assert torch.allclose(outputs[0].logits, outputs[1].logits, rtol=1e-6, atol=1e-7), type(model).__name__
        outputs[0].loss.backward()
        theirs = whole(input_ids=sequences(0, 0), labels=sequences(0, 0)).loss
        for rank in range(1, WORLD):
            theirs = theirs + whole(input_ids=sequences(rank, 0), labels=sequences(rank, 0)).loss
        (theirs / WORLD).backward()
        number = 8 // WORLD if WORLD <= 8 else 1
        for ours, all_experts in zip([each for name, each in model.named_parameters() if "down_proj" in name and each.dim() == 3],
                                     [each for name, each in whole.named_parameters() if "down_proj" in name and each.dim() == 3]):
            mine = all_experts.grad[RANK * number:(RANK + 1) * number]
            assert torch.allclose(ours.grad, mine, rtol=1e-5, atol=1e-8), type(model).__name__
    raises(lambda: moeccl.torch.replace_transformers(torch.nn.Linear(2, 2)), "no such block")
    raises(lambda: moeccl.torch.replace_transformers(tiny(torch.float32), esp_size=2), "esp_size")
    raises(lambda: moeccl.torch.replace_transformers(model, ep_size=1), "all are replaced")
    raises(lambda: moeccl.torch.replace_transformers(tiny(torch.float32), shared_experts=torch.nn.Linear(32, 32)), "Leave shared_experts out")


@check
def generation():
    """Inference, each rank with a prompt of its own, of another length."""
    model, whole = tiny(torch.float64).eval(), tiny(torch.float64).eval()
    moeccl.torch.replace_transformers(model)
    prompt = sequences(RANK, 3)[:1, :2 + RANK % 3]
    options = dict(max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(prompt, **options), whole.generate(prompt, **options))
    # Other numbers of new tokens on each rank.
    options = dict(max_new_tokens=3 + 2 * RANK, min_new_tokens=3 + 2 * RANK, do_sample=False)
    assert torch.equal(model.generate(prompt, synced_gpus=True, **options), whole.generate(prompt, **options))


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    os.environ["HF_HUB_OFFLINE"] = "1"


if __name__ == "__main__":
    main(start)
