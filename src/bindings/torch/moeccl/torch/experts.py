"""What the parameters of a layer's experts are: of one expert each, of all, or shared by all."""

import fnmatch
import weakref
from typing import NamedTuple

import torch
from torch.distributed.fsdp._common_utils import _is_fsdp_flattened
from torch.distributed.tensor import DTensor

_layers = weakref.WeakSet()  # all that there are


class Place(NamedTuple):
    """Of a parameter or buffer. expert: of this one alone, counted from 0 on this rank. dim: that has all of this rank's
    experts one after another. Neither: all experts of all ranks share it."""

    expert: int | None = None
    dim: int | None = None

    @property
    def shared(self):
        return self.expert is None and self.dim is None


class _Elsewhere:
    """An expert that another rank has, and all that is in it."""

    def __getattr__(self, name):
        if name == "_fqn_modifiers" or name.startswith("__"):
            raise AttributeError(name)
        return self


class _Numbered:
    """This rank's part of a list of all experts: their names are their numbers among all."""

    first = total = 0

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            # torch.distributed.checkpoint.state_dict resolves each name of a state_dict.
            if name.isdigit() and int(name) < self.total:
                return _Elsewhere()
            raise

    def _get_abs_string_index(self, index):
        return str(int(super()._get_abs_string_index(index)) + self.first)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return torch.nn.ModuleList(list(self._modules.values())[index])
        return super().__getitem__(index)


class ExpertList(_Numbered, torch.nn.ModuleList):
    pass


def _numbered(kind):
    if issubclass(kind, _Numbered):
        return kind
    return ExpertList if kind is torch.nn.ModuleList else type(kind.__name__, (_Numbered, kind), {})


def lists_of(module, local, dims, prefix=""):
    """Lists of this rank's experts in the module, or itself, and their names' beginnings. What is in experts is theirs."""
    if isinstance(module, torch.nn.ModuleList) and len(module) == local:
        # One whose parameters are all told otherwise only happens to be as long.
        names = [f"{prefix}{name}" for name, _ in module.named_parameters()]
        if not prefix or not names or not all(pattern_of(name, dims) for name in names):
            yield prefix, module
            return
    for name, child in module.named_children():
        yield from lists_of(child, local, dims, f"{prefix}{name}.")


def pattern_of(name, dims):
    return next((each for each in dims if fnmatch.fnmatchcase(name, each)), None)


def number_experts(lists, first, total):
    """Gives experts in the lists the numbers that they have among all."""
    for _, module in lists:
        entries = list(module._modules.values())
        module.__class__ = _numbered(type(module))
        module.first, module.total = first, total
        module._modules.clear()
        module._modules.update((str(first + place), each) for place, each in enumerate(entries))


def _expert_of(name, lists):
    """Which of this rank's experts the name leads through, or None."""
    for prefix, module in lists:
        if name.startswith(prefix):
            return list(module._modules).index(name[len(prefix):].split(".")[0])
    return None


def places_of(experts, lists, local, dims):
    """The place of each parameter and persistent buffer, by name. dims: see MoE's expert_dims."""
    named = list(experts.named_parameters(remove_duplicate=False))
    buffers = [(f"{prefix}.{name}".lstrip("."), each) for prefix, module in experts.named_modules(remove_duplicate=False)
               for name, each in module._buffers.items()
               if each is not None and name not in module._non_persistent_buffers_set]
    users = {}
    for name, tensor in named + buffers:
        users.setdefault(id(tensor), set()).add(_expert_of(name, lists))
    places = {}
    for name, tensor in named + buffers:
        pattern, expert = pattern_of(name, dims), _expert_of(name, lists)
        if pattern is not None and expert is not None and dims[pattern] is not None:
            raise ValueError(f"expert_dims[{pattern!r}] is {dims[pattern]!r}; {name} belongs to one expert of a list, so it must be "
                             "None (all experts share it), or left out")
        if pattern is not None:
            places[name] = _told(name, tensor, dims[pattern], local)
        elif expert is not None:
            places[name] = Place(expert=expert) if len(users[id(tensor)]) == 1 else Place()
        elif tensor.dim() > 0 and len(tensor) == local:
            places[name] = Place(dim=0)
        elif isinstance(tensor, torch.nn.Parameter):
            raise ValueError(
                f"the experts' parameter {name} is {list(tensor.shape)}; its first dimension is not this rank's {local} "
                f"experts. If all experts share it, pass expert_dims={{{name!r}: None}}; if experts lie in another "
                f"dimension, or several rows belong to each, pass that dimension")
        else:
            places[name] = Place()
    for pattern in dims:
        if not fnmatch.filter(places, pattern):
            raise ValueError(f"expert_dims names {pattern!r}; the experts' parameters are {sorted(places)}")
    return places


def _told(name, parameter, dim, local):
    if dim is None:
        return Place()
    if not isinstance(dim, int) or not 0 <= dim < parameter.dim() or parameter.shape[dim] % local != 0:
        raise ValueError(f"expert_dims[{name!r}] is {dim!r}; it must be None, or a dimension of {list(parameter.shape)} "
                         f"that this rank's {local} experts divide")
    return Place(dim=dim)


def is_wrapper(tensor):
    """Whether it is a DTensor or another tensor around tensors, without memory of its own."""
    return isinstance(tensor, DTensor) or torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor)


def is_flattened(parameter):
    """Whether FSDP1 has put it, or what it is a view of, into one with others."""
    return any(_is_fsdp_flattened(each) for each in (parameter, parameter._base) if each is not None)


def refuse_wrapper(tensor, what):
    if is_wrapper(tensor):
        raise TypeError(f"{what} {'is a ' + type(tensor).__name__}; moeccl.torch.MoE takes plain tensors: pass the local "
                        "one (DTensor.to_local())")


def _fully_sharded():
    """What FSDP2 keeps of each parameter that it has sharded, and of its group."""
    for reference in list(torch.distributed._composable_state._module_state_mapping.values()):
        for group in getattr(reference(), "_fsdp_param_groups", ()):
            for each in group.fsdp_params:
                yield each, group


def _named(module):
    for prefix, each in module.named_modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                yield f"{prefix}.{name}".lstrip("."), each, name, parameter


def among_replicas(experts, ranks, count):
    """By name, what FSDP2 keeps of the experts' parameters that fully_shard has cut among the ranks, which hold the same experts.
    Raises where FSDP has cut them otherwise, so that each rank would get parts of other ranks' experts. count: of parameters."""
    cut = {(id(each._module_info.module), each._module_info.param_name): (each, group) for each, group in _fully_sharded()}
    found = {}
    for name, module, own, parameter in _named(experts):
        each, group = cut.get((id(module), own), (None, None))
        if each is None:
            if is_wrapper(parameter):
                _refuse(name, f"is a {type(parameter).__name__}")
            if is_flattened(parameter):
                _refuse(name, "was flattened by FSDP")
        else:
            given = each.mesh_info.mesh.mesh.tolist()
            if given != ranks:
                _refuse(name, f"was sharded by fully_shard over the ranks {given}; those that hold the same experts are {ranks}")
            if not hasattr(group, "reduce_scatter_unused_params"):
                _refuse(name, "was sharded by fully_shard, and this torch would wait for gradients of experts without rows")
            group.reduce_scatter_unused_params = True
            found[name] = each
    if len(list(experts.parameters())) != count:
        raise TypeError(f"the experts have {len(list(experts.parameters()))} parameters, and had {count} when the layer was "
                        f"made. {_HOW}")
    return found


def refuse_cut(module, ranks, whose):
    """Raises where fully_shard has cut the gate, or shared experts, among the ranks that hold the same experts, as it does with a
    whole layer. whose: "the gate's" or so."""
    cut = {id(each._module_info.module): each for each, _ in _fully_sharded()}
    for name, owner, _, _ in _named(module):
        if id(owner) in cut and cut[id(owner)].mesh_info.mesh.mesh.tolist() == ranks:
            raise TypeError(f"{whose} parameter {name} was sharded by fully_shard over the ranks {ranks} that hold the same "
                            f"experts, and its gradient is of all ranks. {_HOW}")


def refuse_averaged(experts, places, parallel, ranks):
    """Raises where DistributedDataParallel averages parameters of experts over other ranks than those that hold the same experts.
    places: by name."""
    over = torch.distributed.get_process_group_ranks(parallel.process_group)
    if set(over) <= set(ranks):
        return
    averaged = {id(each) for each in parallel._module_parameters}
    for name, parameter in experts.named_parameters():
        if id(parameter) in averaged and name in places and not places[name].shared:
            raise TypeError(
                f"DistributedDataParallel has the experts' parameter {name}, and made it the same on the ranks {over}; those that hold "
                f"the same experts are {ranks}. Make the model anew, and pass DistributedDataParallel(moeccl.torch.exclude_experts("
                "model)), with what is around it in model")


_HOW = ("A layer's experts belong to their ranks. Shard them over those that hold the same ones, before the rest of the model: "
        "fully_shard(layer.experts, mesh=layer.replica_mesh), or each expert of a ModuleList. Or leave them out: "
        "fully_shard(model, ignored_params=moeccl.torch.expert_parameters(model)); of FSDP1, ignored_states=")


def _refuse(name, what):
    raise TypeError(f"the experts' parameter {name} {what}. {_HOW}")


def register(layer):
    _layers.add(layer)


def layers():
    """All that there are. Their order differs between ranks."""
    return list(_layers)


def owners():
    """Of each parameter of experts that belongs to some of them, by id: its layer and its name there."""
    found = {}
    for layer in _layers:
        for name, parameter in layer.experts.named_parameters(remove_duplicate=False):
            if name in layer.places and not layer.places[name].shared:
                found[id(parameter)] = layer, name
    return found


def expert_parameters(model):
    """The parameters of the experts of the model's MoE layers: what FSDP must leave out.

        fully_shard(model, ignored_params=moeccl.torch.expert_parameters(model))
    """
    ours = {id(each) for layer in _layers for each in layer.experts.parameters()}
    return {each for each in model.parameters() if id(each) in ours}


def exclude_experts(model):
    """Tells DistributedDataParallel to leave out the experts of the model's MoE layers, which average their own.

        model = DistributedDataParallel(moeccl.torch.exclude_experts(model))
    """
    ignored = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    found = {layer.experts for layer in _layers}
    for prefix, module in model.named_modules():
        if module in found:
            for tensors in (module.named_parameters(prefix), module.named_buffers(prefix)):
                ignored.update(each for each, _ in tensors)
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return model
