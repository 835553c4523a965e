"""DeepSpeed's MoE layer as it is, on moeccl's backend, against the same layer with moeccl.torch.MoE inside.

    torchrun --nproc-per-node 4 tests/torch/deepspeed_layer.py [CHECK...]
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import MOELayer
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from harness import check, main, raises

import moeccl.torch

HIDDEN, TOKENS = 16, 48


def made(seed=5, grouped=True, **options):
    torch.manual_seed(seed)
    expert = torch.nn.Sequential(torch.nn.Linear(HIDDEN, 32), torch.nn.ReLU(), torch.nn.Linear(32, HIDDEN))
    layer = MoE(HIDDEN, expert, num_experts=8, use_rts=False, top2_2nd_expert_sampling=False, **options)
    first = RANK % options["ep_size"] * layer.num_local_experts
    for place, each in enumerate(layer.deepspeed_moe.experts.deepspeed_experts):
        torch.manual_seed(1000 + first + place)
        for parameter in each.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    if grouped:  # else the engine does it
        layer.set_deepspeed_parallelism()
    return torch.nn.ModuleDict({"layer": layer})


def step(model, salt=0):
    """Output, auxiliary loss, and gradients of tokens and of all parameters by their names."""
    generator = torch.Generator().manual_seed(100 * RANK + salt)
    tokens = torch.randn(4, TOKENS // 4, HIDDEN, generator=generator).requires_grad_()
    target = torch.randn(4, TOKENS // 4, HIDDEN, generator=generator)
    model.zero_grad()
    output, auxiliary, counts = model["layer"](tokens)
    ((output * target).sum() + auxiliary).backward()
    gradients = {name: each.grad.clone() if each.grad is not None else None for name, each in model.named_parameters()}
    return output.detach(), auxiliary.detach(), counts, {"tokens": tokens.grad, **gradients}


def same(ours, theirs, what):
    if theirs is None:
        theirs = torch.zeros_like(ours)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5), f"rank {RANK}: {what} is off by {(ours - theirs).abs().max()}"


@check
def one_line_replacement():
    for options in (dict(k=1), dict(k=2), dict(k=3), dict(k=1, drop_tokens=False), dict(k=2, drop_tokens=False),
                    dict(k=4, drop_tokens=False), dict(k=2, ep_size=2), dict(k=2, use_residual=True),
                    dict(k=2, capacity_factor=0.5, min_capacity=2)):
        options = {"ep_size": WORLD, "capacity_factor": 1.0, **options}
        theirs, ours = made(**options), moeccl.torch.replace_deepspeed(made(**options))
        assert not any(isinstance(each, MOELayer) for each in ours.modules())
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for salt in range(2):
            (output, auxiliary, counts, gradients), (want, their_auxiliary, their_counts, their_gradients) = \
                step(ours, salt), step(theirs, salt)
            same(output, want, f"output, {options}")
            same(auxiliary, their_auxiliary, "auxiliary loss")
            assert torch.equal(counts, their_counts)
            for name, gradient in gradients.items():
                same(gradient, their_gradients[name], f"gradient of {name}, {options}")


@check
def trained_by_the_engine():
    """Some steps of deepspeed.initialize's engine, which averages gradients of experts over their replicas."""
    results = []
    for replaced in (False, True):
        torch.manual_seed(2)
        model = made(grouped=False, k=2, ep_size=2, capacity_factor=2.0)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.moe = model["layer"]
                self.last = torch.nn.Linear(HIDDEN, 1)

            def forward(self, tokens):
                output, auxiliary, _ = self.moe(tokens)
                return self.last(output).square().mean() + 0.01 * auxiliary

        torch.manual_seed(2)
        whole = Model()
        groups = split_params_into_different_moe_groups_for_optimizer({"params": list(whole.parameters()), "name": "all"})
        engine, _, _, _ = deepspeed.initialize(
            model=whole, optimizer=torch.optim.Adam(groups, 1e-2),
            config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0}})
        if replaced:
            moeccl.torch.replace_deepspeed(engine.module)
        losses = []
        for salt in range(5):
            tokens = torch.randn(4, TOKENS // 4, HIDDEN, generator=torch.Generator().manual_seed(100 * RANK + salt))
            loss = engine(tokens)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        results.append(torch.stack([each.float() for each in losses]))
    same(results[1], results[0], "losses")
    assert results[0][-1] < results[0][0]


@check
def too_early_is_told():
    model = torch.nn.ModuleDict({"layer": MoE(HIDDEN, torch.nn.Linear(HIDDEN, HIDDEN), num_experts=8, ep_size=WORLD)})
    raises(lambda: moeccl.torch.replace_deepspeed(model), "expert groups")
    raises(lambda: moeccl.torch.replace_deepspeed(model, shared_experts=torch.nn.Linear(2, 2)), "Leave shared_experts out")


def start():
    global WORLD, RANK
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    deepspeed.init_distributed()


if __name__ == "__main__":
    main(start)
