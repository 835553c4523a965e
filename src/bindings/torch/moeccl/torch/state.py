"""state_dicts that have every expert under the model's own names, wherever it is.

A state_dict holds own experts' memory, and says of all experts which rank has them: it has DTensors of the ranks that
share the experts. Those of parameters that hold several experts are sharded. One expert's parameter, of a list, is on
one rank; on the others it is as many zeros, which take no memory, to be added (Partial). So torch's own tools gather
them, and torch.distributed.checkpoint saves and loads each expert where it is. If fully_shard has cut the parameter among
the ranks that hold the same experts, the DTensor's mesh has these as its last dimension.
"""

import contextlib

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.distributed.checkpoint.planner_helpers import _create_write_items, _create_write_items_for_dtensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

_own_alone = False


def own_alone():
    return _own_alone


class ExpertTensor(DTensor):
    """Of experts, which this rank has (_is_here), or of one that another has. It must be saved by those who know of all ranks."""

    def _with(self, local, placements):
        return DTensor.from_local(local, self.device_mesh, placements, run_check=False, shape=self.shape, stride=self.stride())

    def _held(self):
        return self._with(self.to_local(), [Replicate() if each.is_partial() else each for each in self.placements])

    def __create_write_items__(self, fqn, object):
        return self._held().__create_write_items__(fqn, object) if self._is_here else []

    def __create_chunk_list__(self):
        return self._held().__create_chunk_list__() if self._is_here else []

    def __get_tensor_shard__(self, index):
        return self.to_local()

    def __reduce_ex__(self, protocol):
        raise TypeError(
            "this state_dict is spread over ranks, and a file of one rank would lose the experts of all others. Save it by "
            "torch.distributed.checkpoint, or gather it on all ranks by get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)); within moeccl.torch.own_experts() a state_dict is one for a file of "
            "each rank")

    def new_empty(self, *size, **options):
        # torch.distributed.checkpoint.async_save makes its copies by this, and gives them memory and attributes.
        return _expert_tensor(super().new_empty(*size, **options), self._is_here)

    def __deepcopy__(self, memo):
        local = self.to_local()
        copied = local.clone() if self._is_here else local  # of zeros that nobody writes to
        return memo.setdefault(id(self), _expert_tensor(self._with(copied, self.placements), self._is_here))


def _expert_tensor(made, is_here):
    made.__class__ = ExpertTensor
    made._is_here = is_here
    return made


class ListedTensor(torch.Tensor):
    """What an optimizer keeps of the parameter _name, of one expert in a list; or this rank's part of that, in a DTensor. It must
    be saved under that name: an optimizer's own state_dict has numbers, under which other ranks have other experts."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # what is computed of it is a plain tensor

    def __create_write_items__(self, fqn, object):
        if f".{self._name}." not in f".{fqn}.":
            raise ValueError(
                f"{fqn} is what an optimizer keeps of the experts' parameter {self._name}, and on other ranks of other experts'. "
                "Save get_optimizer_state_dict(model, optimizer) of torch.distributed.checkpoint.state_dict instead of "
                "optimizer.state_dict()")
        if isinstance(object, DTensor):
            return [_create_write_items_for_dtensor(fqn, object)]
        return _create_write_items(fqn, self.as_subclass(torch.Tensor))

    def new_empty(self, *size, **options):
        return _listed(super().new_empty(*size, **options), self._name)

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), _listed(self.detach().clone(), self._name))

    def __reduce_ex__(self, protocol):
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)


def _listed(tensor, name):
    if isinstance(tensor, DTensor):
        tensor._local_tensor = _listed(tensor._local_tensor, name)
        return tensor
    made = tensor.as_subclass(ListedTensor)
    made._name = name
    return made


def whole(state_dict, keep=True):
    """Of a state_dict, what is spread over ranks gathered on all of them; without keep it is left out, on this rank.
    Collective over the ranks."""
    gathered = {}
    for key, value in state_dict.items():
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if keep:
            gathered[key] = value
    return gathered


@contextlib.contextmanager
def own_experts():
    """A state_dict that is made within has plain tensors, and no experts of other ranks:

        with moeccl.torch.own_experts():
            torch.save(model.state_dict(), f"rank{rank}.pt")
    """
    global _own_alone
    before, _own_alone = _own_alone, True
    try:
        yield
    finally:
        _own_alone = before


def _part(tensor, mesh, placements):
    """The tensor as part of one on the mesh. One that fully_shard has cut among replicas is cut along the last dimension of the
    mesh, too."""
    if not isinstance(tensor, DTensor):
        return DTensor.from_local(tensor, mesh, placements, run_check=False)
    shape = list(tensor.shape)
    for size, placement in zip(mesh.shape[:-1], placements):
        if placement.is_shard():
            shape[placement.dim] *= size
    return DTensor.from_local(tensor.to_local(), mesh, [*placements, *tensor.placements], run_check=False,
                              shape=torch.Size(shape), stride=make_contiguous_strides_for(shape))


def _mesh_of(layer, tensor):
    return layer.grid.whole_mesh if isinstance(tensor, DTensor) else layer.grid.mesh


def spread(layer, name, tensor):
    """The tensor, or what an optimizer keeps of it, as part of that of all ranks; name: of the parameter."""
    place = layer.places.get(name)
    if place is None or place.shared or layer.grid.size == 1 or tensor.dim() == 0:
        return tensor
    mesh, cut = _mesh_of(layer, tensor), layer.cut_of(name)
    placement = Partial() if place.dim is None else Shard(place.dim)
    return _expert_tensor(_part(tensor, mesh, [placement, *cut]), True)


def listed(layer, name, tensor):
    """What an optimizer keeps of one expert's parameter in a list, whole where it is cut into shards."""
    if layer.grid.esp_size > 1:
        names = _mesh_of(layer, tensor).mesh_dim_names[1:]
        tensor = _part(tensor, _mesh_of(layer, tensor)[names], layer.cut_of(name))
    if layer.grid.ep_size == 1:
        return tensor
    for wrapper in ("_orig_mod.", "_checkpoint_wrapped_module."):  # which have no part in the names of state_dicts
        name = name.replace(wrapper, "")
    return _listed(tensor.detach(), name)


def _find(module, name):
    path, _, own = name.rpartition(".")
    return getattr(module.get_submodule(path), own)


def local_part(layer, name, value):
    """The reverse of spread, and own experts of a tensor of all."""
    place, grid = layer.places.get(name), layer.grid
    cut_among = layer.sharded[name].sharded_param if name in layer.sharded else None
    if isinstance(value, DTensor):
        if cut_among is not None:
            return _among_replicas(value, cut_among)
        value = value.to_local()
    if isinstance(value, ListedTensor):
        value = value.as_subclass(torch.Tensor)
    if place is None or place.shared or value.dim() == 0:
        return value
    wanted = (_find(layer.experts, name) if cut_among is None else cut_among).shape
    cuts = [(place.dim, grid.ep_size, grid.ep_rank)] if place.dim is not None else []
    cuts += [(each.dim, grid.esp_size, grid.esp_rank) for each in layer.cut_of(name, needed=False) if each.is_shard()]
    for dim, parts, part in cuts:
        if value.dim() == len(wanted) and value.shape[dim] == parts * wanted[dim]:
            value = value.narrow(dim, part * wanted[dim], wanted[dim])
    if cut_among is None:
        return value
    return distribute_tensor(value, cut_among.device_mesh, cut_among.placements, src_data_rank=None)


def _among_replicas(value, cut_among):
    """Of one whose mesh has replicas as its last dimension, this rank's experts, as fully_shard has cut their parameter."""
    shape = list(value.shape)
    for size, placement in zip(value.device_mesh.shape[:-1], value.placements):
        if placement.is_shard():
            shape[placement.dim] //= size
    return DTensor.from_local(value.to_local(), cut_among.device_mesh, cut_among.placements, run_check=False,
                              shape=torch.Size(shape), stride=make_contiguous_strides_for(shape))


def save_hook(experts, state_dict, prefix, local_metadata):
    """Of the module of experts, behind state_dict()."""
    layer = experts.moeccl_layer
    layer.note_sharded()
    if _own_alone or layer.grid.size == 1:
        return
    own = {key[len(prefix):]: state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
    for name, value in _of_all(layer, own):
        state_dict[prefix + name] = value


def _of_all(layer, own):
    """In an order that is the same on all ranks."""
    lists = {prefix for prefix, _ in layer.lists}
    done = set()
    for name, value in own.items():
        prefix = next((each for each in lists if name.startswith(each)), None)
        if prefix is None:
            yield name, spread(layer, name, value)
        elif prefix not in done:
            done.add(prefix)
            yield from _list_of_all(layer, prefix, {key: each for key, each in own.items() if key.startswith(prefix)})


def _list_of_all(layer, prefix, own):
    local, grid = layer.num_local_experts, layer.grid
    by_place = [[] for _ in range(local)]
    for name, value in own.items():
        number, _, rest = name[len(prefix):].partition(".")
        by_place[int(number) - grid.ep_rank * local].append((name, rest, value))
    for rank in range(grid.ep_size):
        for place, entries in enumerate(by_place):
            for name, rest, value in entries:
                if rank == grid.ep_rank:
                    yield name, spread(layer, name, value)
                elif isinstance(value, torch.Tensor):
                    yield f"{prefix}{rank * local + place}.{rest}", _elsewhere(layer, name, value)


def _elsewhere(layer, name, value):
    place = layer.places.get(name)
    if place is None or place.shared or value.dim() == 0:
        return value
    like = _part(value, _mesh_of(layer, value), [Partial(), *layer.cut_of(name)])
    zeros = torch.zeros((), dtype=value.dtype, device=value.device).expand(like.to_local().shape)
    return _expert_tensor(DTensor.from_local(zeros, like.device_mesh, like.placements, run_check=False, shape=like.shape,
                                             stride=like.stride()), False)


def load_hook(experts, state_dict, prefix, *_):
    """Of the module of experts, before load_state_dict() looks for what it needs."""
    layer = experts.moeccl_layer
    layer.note_sharded()
    for key in [each for each in state_dict if each.startswith(prefix)]:
        name = key[len(prefix):]
        if _is_elsewhere(layer, name):
            del state_dict[key]
        elif isinstance(state_dict[key], torch.Tensor):
            state_dict[key] = local_part(layer, name, state_dict[key])


def _is_elsewhere(layer, name):
    for prefix, _ in layer.lists:
        if name.startswith(prefix):
            number = name[len(prefix):].split(".")[0]
            own = layer.grid.ep_rank * layer.num_local_experts
            return number.isdigit() and int(number) < layer.num_experts \
                and not own <= int(number) < own + layer.num_local_experts
    return False


def install(layer):
    """Has the layer's experts make and take such state_dicts."""
    experts = layer.experts
    hooked = "moeccl_layer" in experts.__dict__
    experts.__dict__["moeccl_layer"] = layer
    if not hooked:
        experts.register_state_dict_post_hook(save_hook)
        experts.register_load_state_dict_pre_hook(load_hook)
