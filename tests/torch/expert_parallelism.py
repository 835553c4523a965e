"""Expert parallelism of transformers, DistributedConfig(ep_implementation="moeccl"), is what one process computes.

    torchrun --nproc-per-node 8 tests/torch/expert_parallelism.py [CHECK...]

Models are tiny and random; each check goes through transformers' own saving, loading, sharding and Trainer.
"""

import copy
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from harness import check, main, raises
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import (AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, MixtralConfig, OlmoeConfig, Qwen3MoeConfig,
                          Trainer, TrainingArguments, logging)
from transformers.distributed import DistributedConfig

import moeccl.torch

STEPS, RATE, NORM = 50, 3e-3, 0.5
VOCABULARY, LENGTH, SEQUENCES = 32, 12, 2
SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
             num_experts_per_tok=2, max_position_embeddings=64, tie_word_embeddings=False)
FAMILIES = {
    "mixtral": MixtralConfig(num_local_experts=8, intermediate_size=48, output_router_logits=True, **SMALL),
    "qwen3_moe": Qwen3MoeConfig(num_experts=8, intermediate_size=48, moe_intermediate_size=24, head_dim=8, norm_topk_prob=True,
                                **SMALL),
    "deepseek_v3": DeepseekV3Config(n_routed_experts=8, n_group=2, topk_group=1, intermediate_size=48,
                                    moe_intermediate_size=24, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8,
                                    qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1, **SMALL),
    "gpt_oss": GptOssConfig(num_local_experts=8, intermediate_size=48, head_dim=8, **SMALL),
    "olmoe": OlmoeConfig(num_experts=8, intermediate_size=24, **SMALL),
}


def grids(family):
    """(tp_size, ep_size), all with FSDP2; gpt-oss has no plan for tensor parallelism."""
    return [(tp, ep) for tp in (1, 2) for ep in (2, 4) if tp == 1 or family != "gpt_oss"]


def configured(tp, ep, implementation="moeccl"):
    return DistributedConfig(tp_size=tp, fsdp_size=WORLD // tp, ep_size=ep, ep_implementation=implementation)


def whole(family):
    """The model of one process; all ranks make the same."""
    torch.manual_seed(11)
    config = copy.deepcopy(FAMILIES[family])  # saving a model changes its own
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager", attn_implementation="eager")
    with torch.no_grad():  # biases begin as zeros, and routers of some as well
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model.double()


def saved(family):
    """A folder with the model, for all ranks."""
    folder = os.path.join(FOLDER, family)
    if RANK == 0 and not os.path.exists(folder):
        whole(family).save_pretrained(folder)
    dist.barrier()
    return folder


def loaded(folder, *grid):
    distributed = configured(*grid)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, distributed_config=distributed,
                                                 experts_implementation="eager", attn_implementation="eager")
    if distributed.efsdp_size == 1:
        # FSDP2 divides float64 gradients of modules that it does not shard twice, whoever moves the tokens.
        for module in model.modules():
            if isinstance(module, FSDPModule) and hasattr(module, "num_experts"):
                module.set_gradient_divide_factor(distributed.dp_size ** 0.5)
    return model


def sequences(number):
    """Each token follows from the one before it, but for one in eight."""
    generator = torch.Generator().manual_seed(number)
    tokens = [torch.randint(VOCABULARY, (1,), generator=generator)]
    for _ in range(LENGTH - 1):
        noise = torch.randint(VOCABULARY, (1,), generator=generator)
        chance = torch.rand(1, generator=generator) < 1 / 8
        tokens.append(torch.where(chance, noise, (5 * tokens[-1] + 3) % VOCABULARY))
    return torch.cat(tokens)


class Sequences(torch.utils.data.Dataset):
    def __init__(self, number):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, place):
        tokens = sequences(place)
        return {"input_ids": tokens, "labels": tokens}


def batch(number):
    tokens = torch.stack([sequences(SEQUENCES * number + i) for i in range(SEQUENCES)])
    return {"input_ids": tokens, "labels": tokens}


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def near(ours, theirs, what, most=1e-6):
    off = (ours - theirs).abs().max().item()
    assert off < most, f"{what} is off by {off}"


@check
def forward_and_backward():
    """Logits and every gradient, with parameters that are whole on other ranks."""
    for family in FAMILIES:
        folder = saved(family)
        for tp, ep in grids(family):
            batches = WORLD // tp
            model, reference = loaded(folder, tp, ep), whole(family)
            outputs = model(**batch(RANK // tp))
            outputs.loss.backward()
            losses = [reference(**batch(each)) for each in range(batches)]
            torch.stack([each.loss for each in losses]).mean().backward()
            what = f"{family}, tp {tp}, ep {ep}"
            near(full(outputs.logits), losses[RANK // tp].logits, f"{what}: logits")
            theirs = dict(reference.named_parameters())
            for name, parameter in model.named_parameters():
                assert (parameter.grad is None) == (theirs[name].grad is None), f"{what}: gradient of {name}"
                if parameter.grad is not None:
                    near(full(parameter.grad), theirs[name].grad, f"{what}: gradient of {name}")


class Recorder(Trainer):
    """Keeps the loss of each step, and takes sequences in their order."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.losses = []

    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        result = super().compute_loss(model, inputs, return_outputs, **options)
        self.losses.append((result[0] if return_outputs else result).detach())
        return result


def by_trainer(model, batches):
    arguments = TrainingArguments(
        output_dir=os.path.join(FOLDER, "trainer"), max_steps=STEPS, per_device_train_batch_size=SEQUENCES,
        learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=NORM, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, average_tokens_across_devices=False)
    trainer = Recorder(model, arguments, train_dataset=Sequences(SEQUENCES * batches * STEPS))
    trainer.train()
    return trainer.losses


def by_steps(model, loss_of, clip):
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0, foreach=False)
    losses = []
    for step in range(STEPS):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        clip(model)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def spread(model, tp):
    """The mean of the ranks' losses at each step."""
    batches = WORLD // tp
    if tp == 1:
        losses = by_trainer(model, batches)
    else:  # accelerate has no tensor parallelism on CPUs; norms are the Trainer's
        losses = by_steps(model, lambda step: model(**batch(step * batches + RANK // tp)).loss,
                          lambda model: Trainer._mixed_mesh_grad_norm(None, model, NORM))
    losses = torch.stack([full(each).double() for each in losses])
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses


def in_one_process(family, tp):
    """The losses of all ranks' batches together, on all ranks."""
    losses = torch.empty(STEPS, dtype=torch.float64)
    if RANK == 0:
        model, batches = whole(family), WORLD // tp
        losses = torch.stack(by_steps(
            model, lambda step: torch.stack([model(**batch(step * batches + each)).loss for each in range(batches)]).mean(),
            lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), NORM))).double()
    dist.broadcast(losses, 0)
    assert losses[-1] < losses[0] - 0.3, (family, tp, losses)
    return losses


@check
def trainer_and_checkpoints():
    """Loss curves with clipped norms, by transformers' Trainer; what is saved afterwards is the whole model."""
    for family in FAMILIES:
        curves = {tp: in_one_process(family, tp) for tp in {tp for tp, _ in grids(family)}}
        for tp, ep in grids(family):
            what = f"{family}, tp {tp}, ep {ep}"
            model = loaded(saved(family), tp, ep)
            ours, theirs = spread(model, tp), curves[tp]
            off = (ours - theirs).abs().max().item()
            if RANK == 0:
                print(f"{what}: {STEPS} steps from {theirs[0]:.3f} to {theirs[-1]:.3f}, none off by more than {off:.1e}",
                      flush=True)
            assert off < 1e-6, (what, off, ours, theirs)
            saved_and_loaded(model.eval(), tp, ep, what)


def saved_and_loaded(model, tp, ep, what):
    folder = os.path.join(FOLDER, "trained")
    model.save_pretrained(folder)
    dist.barrier()
    with torch.no_grad():
        logits = full(model(**batch(RANK // tp)).logits)
        alone = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager",
                                                     attn_implementation="eager").eval()
        near(logits, alone(**batch(RANK // tp)).logits, f"{what}: logits of one process that loads it", 1e-12)
        other = loaded(folder, tp, 2 if ep == 4 else 4).eval()
        near(logits, full(other(**batch(RANK // tp)).logits), f"{what}: logits with another ep_size", 1e-12)
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(folder)
    dist.barrier()


@check
def float32_and_bfloat16():
    """With transformers' grouped products, beside its own exchange of tokens."""
    for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        results = []
        for implementation in ("moeccl", "all_to_all"):
            model = AutoModelForCausalLM.from_pretrained(saved("qwen3_moe"), dtype=dtype,
                                                         distributed_config=configured(1, 4, implementation))
            outputs = model(**batch(RANK))
            outputs.loss.backward()
            results.append([outputs.logits, *(full(each.grad) for each in model.parameters())])
        for ours, theirs in zip(*results):
            near(ours.float(), theirs.float(), f"{dtype}", most * max(1, theirs.abs().max().item()))


@check
def ranks_without_rows():
    """Two experts get all tokens: the other ranks have none, and gradients of zero."""
    model = loaded(saved("mixtral"), 1, 4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight") or "router" in name:
                parameter.zero_()  # all logits are equal
    for _ in range(2):
        model.zero_grad()
        model(**batch(RANK)).loss.backward()
    for name, parameter in model.named_parameters():
        if "experts" in name:
            assert parameter.grad is not None, name
            assert full(parameter.grad).flatten(1).any(1).sum() == 2, name


@check
def padding_is_not_sent():
    length, valid = 40, 4
    tokens = torch.cat([batch(RANK)["input_ids"]] * 4, 1)[:, :length]
    mask = torch.zeros_like(tokens)
    mask[:, length - valid:] = 1
    named = dict(input_ids=tokens, attention_mask=mask)
    # float64 rows that see padding alone are NaN in transformers' own attention.
    reference = whole("qwen3_moe").float().eval()
    theirs = reference(**named).logits[:, -valid:]
    spread = moeccl.torch.replace_transformers(whole("qwen3_moe").float()).eval()
    rows = []
    for module in spread.modules():
        if type(module).__name__ == "Qwen3MoeExperts":
            def counted(given, *rest, own=module.own_forward):
                rows.append(len(given))
                return own(given, *rest)
            module.own_forward = counted
    near(spread(**named).logits[:, -valid:], theirs, "logits", 1e-4)
    total = torch.tensor(sum(rows))
    dist.all_reduce(total)
    choices = FAMILIES["qwen3_moe"].num_hidden_layers * 2 * SEQUENCES * WORLD
    assert total == choices * valid, (total, choices)
    options = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(spread.generate(**named, **options), reference.generate(**named, **options))
    # Without hooks of its own, told by a mask.
    model = AutoModelForCausalLM.from_pretrained(saved("qwen3_moe"), dtype=torch.float32, attn_implementation="eager",
                                                 distributed_config=configured(1, 4)).eval()
    with moeccl.torch.valid_tokens(mask):
        near(model(**named).logits[:, -valid:], theirs, "logits of transformers' own", 1e-4)
    near(moeccl.torch.skip_padding(model)(**named).logits[:, -valid:], theirs, "logits of transformers' own", 1e-4)
    # Recomputed layers leave out the same tokens. Transformers' eager attention rounds otherwise when it is computed again.
    def gradients(model):
        rows.clear()
        model.train()
        model.zero_grad()
        model(**named, labels=tokens.masked_fill(mask == 0, -100)).loss.backward()
        return [each.grad.clone() for each in model.parameters()], sum(rows)

    plain, once = gradients(spread)
    spread.gradient_checkpointing_enable()
    again, twice = gradients(spread)
    assert twice == 2 * once, (once, twice)
    for one, other in zip(plain, again):
        near(other, one, "a gradient of recomputed layers")
    raises(lambda: moeccl.torch.valid_tokens(mask[0]).__enter__(), "mask", "batch")


@check
def what_cannot_be_served_is_refused():
    from transformers import Llama4ForCausalLM, Llama4TextConfig, LongcatFlashConfig, LongcatFlashForCausalLM, NemotronHConfig
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

    sizes = dict(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=2)
    llama = Llama4ForCausalLM(Llama4TextConfig(num_local_experts=8, head_dim=8, intermediate_size_mlp=16, **sizes))
    raises(lambda: moeccl.torch.replace_transformers(llama), "feed_forward.experts", "Llama4TextExperts", "(hidden_states)")
    sizes = dict(vocab_size=8, hidden_size=16, ffn_hidden_size=16, expert_ffn_hidden_size=16, num_layers=1, num_attention_heads=2,
                 kv_lora_rank=8, q_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, head_dim=8)
    longcat = LongcatFlashForCausalLM(LongcatFlashConfig(n_routed_experts=8, zero_expert_num=4, moe_topk=2, **sizes))
    raises(lambda: moeccl.torch.replace_transformers(longcat), "mlp.experts", "LongcatFlashExperts", "num_experts")
    # Experts without a gate's projection are served.
    torch.manual_seed(5)
    block = torch.nn.Sequential(NemotronHMoE(NemotronHConfig(
        hidden_size=16, n_routed_experts=8, moe_intermediate_size=8, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_shared_expert_intermediate_size=8)))
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.randn(1, 5, 16)
    expected = block(tokens)
    near(moeccl.torch.replace_transformers(block)(tokens), expected, "NemotronH", 1e-5)


@check
def wrong_meshes_are_refused():
    """Ranks that share a batch must be neighbours among those that share experts."""
    from moeccl.torch.transformers_ep import _require_consecutive

    _require_consecutive([2, 3], [0, 1, 2, 3])
    raises(lambda: _require_consecutive([0, 2], [0, 1, 2, 3]), "[0, 2]", "tp_size 2", "consecutive")


@check
def registration_is_lazy():
    """In fresh interpreters: before and behind transformers, and without it."""
    if RANK == 0:
        named = "from transformers.distributed.expert_parallel import EPImplementationInterface as each\nassert 'moeccl' in each()"
        absent = "assert not any(each.startswith('transformers') for each in sys.modules)"
        for program in (f"import moeccl.torch, sys\n{absent}\n{named}", f"import transformers\nimport moeccl.torch\n{named}",
                        f"import transformers.distributed.expert_parallel\nimport moeccl.torch\n{named}"):
            subprocess.run([sys.executable, "-c", program], check=True)
    dist.barrier()


def start():
    global WORLD, RANK, FOLDER
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    holder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(holder, 0)
    FOLDER = holder[0]


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of models of transformers', whoever moves the tokens
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        main(start)
    finally:
        gc.collect()
        if int(os.environ["RANK"]) == 0:
            shutil.rmtree(FOLDER, ignore_errors=True)
