"""One line for models that are there: their MoE blocks keep gate, experts and all else, moeccl moves the tokens."""

import inspect

import torch

from .experts import exclude_experts
from .grid import grid_of
from .moe import MoE
from .padding import UnpaddedMoE, skip_padding
from .state import whole


class _RoutedExperts(UnpaddedMoE):
    """Around experts of transformers: one module with the parameters of all, called with tokens, indices and weights."""

    def _run_experts(self, rows, begins):
        index = torch.repeat_interleave(torch.arange(self.num_local_experts), begins.diff(), output_size=rows.shape[0])
        # Each row has one expert and counts once; the layer knows the weights.
        return [self.experts.own_forward(rows, index[:, None], rows.new_ones(len(rows), 1))]


class _Spread:
    """What a module of experts becomes: its names and parameters stay, and its tokens go to all ranks."""

    def forward(self, tokens, indices, weights):
        return self.moeccl_layer(tokens, indices, weights)

    def own_forward(self, *call):
        return super().forward(*call)


def _is_experts(module):
    stacked = [each for each in module.parameters(recurse=False) if each.dim() == 3]
    return bool(stacked) and ("Experts" in type(module).__name__ or hasattr(module, "num_experts"))


def _refusal(module):
    """Why the experts cannot be spread, or None."""
    asked = [each for each in inspect.signature(type(module).forward).parameters.values()
             if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(asked) != 4:
        names = ", ".join(each.name for each in asked[1:])
        return f"are called with ({names}), not with tokens, indices and weights"
    if getattr(module, "_is_hooked", False):
        return "are spread by transformers' own expert parallelism already"
    number = getattr(module, "num_experts", None)
    if not isinstance(number, int):
        return "have no num_experts: some may have no parameters"
    for name, parameter in module.named_parameters():
        if len(parameter) != number:
            return f"have a parameter {name} of {tuple(parameter.shape)}; the first size must be num_experts, {number}"
    return None


def _keep(module, first, last):
    """Leaves experts first to last - 1 in a module of transformers."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        part = torch.nn.Parameter(parameter.detach()[first:last].clone(), parameter.requires_grad)
        setattr(module, name, part)
    module.num_experts = last - first


def _found(model, what):
    found = [(name, module) for name, module in model.named_modules() if what(module) and not isinstance(module, _Spread)]
    if not found:
        replaced = any(isinstance(each, (_Spread, _DeepSpeedLayer)) for each in model.modules())
        raise ValueError(f"{type(model).__name__} has no such block" + (", all are replaced" if replaced else ""))
    return found


def _refuse_shared_experts(options):
    """The model's block has its own, which it adds itself."""
    if options.get("shared_experts") is not None:
        raise ValueError("shared_experts is for layers of moeccl.torch.MoE; shared experts of a model's block stay where they are, and "
                         "are added by it. Leave shared_experts out")


def replace_transformers(model, **options):
    """Spreads the experts of a model of Hugging Face transformers (Mixtral, Qwen-MoE, OLMoE and all others whose
    experts are called with tokens, indices and weights), version 5 and later, over ranks.

        model = moeccl.torch.replace_transformers(model)

    Every rank brings the same model. Each keeps the parameters of its own experts, unchanged, in its own modules;
    gates, shared experts and all else stay as they are. Make optimisers and DistributedDataParallel afterwards: that
    leaves out the experts. Tokens that attention_mask leaves out are not sent. options: of MoE, but for experts, gate,
    num_experts and shared_experts; not esp_size. Models whose experts cannot be spread (Llama 4, LongCat) are refused as they are.
    """
    if options.get("esp_size", 1) != 1:
        raise ValueError("experts of transformers are not cut into shards; esp_size must be 1")
    _refuse_shared_experts(options)

    found = _found(model, _is_experts)
    for name, module in found:
        if (reason := _refusal(module)) is not None:
            raise ValueError(f"{name or 'the model'} cannot be replaced: its experts, {type(module).__name__}, {reason}")
    for _, module in found:
        number = module.num_experts
        sizes = {each: options[each] for each in ("group", "mp_size", "ep_size", "order") if each in options}
        grid = grid_of(**sizes)
        local, rest = divmod(number, grid.ep_size)
        if rest:
            raise ValueError(f"there are {number} experts; ep_size, {grid.ep_size}, must divide them")
        _keep(module, grid.ep_rank * local, (grid.ep_rank + 1) * local)
        kind = type(module)
        module.__class__ = type(kind.__name__, (_Spread, kind), {"__module__": kind.__module__})
        _RoutedExperts(module, num_experts=number, **options)  # the module keeps it
    if hasattr(model, "gather_sharded_state_dict_for_save"):
        model.gather_sharded_state_dict_for_save = _whole_for_save
    return skip_padding(exclude_experts(model))


def _whole_for_save(model, state_dict, config, *, save_on_this_rank=True):
    """In the place of a method of transformers, by which save_pretrained gathers what is spread over ranks."""
    state_dict = type(model).gather_sharded_state_dict_for_save(model, model, state_dict, config,
                                                                save_on_this_rank=save_on_this_rank)
    spread = [each.moeccl_layer for each in model.modules() if isinstance(each, _Spread)]
    for layer in {layer.grid: layer for layer in spread}.values():
        layer.tell_gathering()
    return whole(state_dict, keep=save_on_this_rank)


class _DeepSpeedExperts(MoE):
    whole_states = False  # DeepSpeed numbers experts itself, in checkpoints of its own


class _DeepSpeedLayer(torch.nn.Module):
    """In the place of DeepSpeed's MOELayer."""

    def __init__(self, layer, options):
        super().__init__()
        self.gate, self.experts = layer.gate, layer.experts  # by their names there, for checkpoints and the engine
        self.ep_group, self.ep_size, self.num_local_experts = layer.ep_group, layer.ep_size, layer.num_local_experts
        if not self.gate.drop_tokens:
            self.gate.ep_group = None  # by which ranks find the largest load, to pad all experts to it
        moe = _DeepSpeedExperts(layer.experts.deepspeed_experts, group=layer.ep_group, gradients=None, **options)
        object.__setattr__(self, "moe", moe)  # has no parameters but the experts'

    def forward(self, tokens, used_token=None):
        flat = tokens.reshape(-1, tokens.shape[-1])
        self.l_aux, _, _, indices, _, weights, self.exp_counts = self.gate(flat, used_token, True)
        return self.moe(flat, indices.t(), weights.t()).reshape(tokens.shape)


def replace_deepspeed(model, **options):
    """Puts a layer of moeccl's in the place of each MOELayer of DeepSpeed, around its own gate and experts.

        model = moeccl.torch.replace_deepspeed(model)

    Call it when DeepSpeed has made its expert groups: behind deepspeed.initialize (for engine.module), or behind
    set_deepspeed_parallelism. Capacity, drops and the auxiliary loss are the gate's, and outputs DeepSpeed's. Rows
    that DeepSpeed sends for padding are not sent. Averaging gradients stays DeepSpeed's. options: of MoE: mp_size,
    esp_size, order, schedule, tokens, chunks.
    """
    _refuse_shared_experts(options)

    def make(layer):
        if layer.ep_group is None:
            raise ValueError("DeepSpeed has made no expert groups yet; call replace_deepspeed behind "
                             "deepspeed.initialize or set_deepspeed_parallelism")
        return _DeepSpeedLayer(layer, options)

    def is_layer(module):
        return type(module).__name__ == "MOELayer" and hasattr(module, "ep_group") \
            and hasattr(module.experts, "deepspeed_experts")

    for name, module in _found(model, is_layer):
        parent, _, own = name.rpartition(".")
        if not name:
            raise ValueError("pass the model that has the block, not the block")
        setattr(model.get_submodule(parent), own, make(module))
    return exclude_experts(model)
