"""state_dicts that have every expert under the model's own names, wherever it is.

A state_dict holds own experts' memory, and says of all experts which rank has them: it has DTensors of the ranks that
share the experts. Those of parameters that hold several experts are sharded. One expert's parameter, of a list, is on
one rank; on the others it is as many zeros, which take no memory, to be added (Partial). So torch's own tools gather
them, and torch.distributed.checkpoint saves and loads each expert where it is.
"""

import contextlib

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

_own_alone = False


def own_alone():
    return _own_alone


class ExpertTensor(DTensor):
    """Of one expert, which this rank has (_is_here) or another."""

    def _held(self):
        placements = [Replicate() if each.is_partial() else each for each in self.placements]
        return DTensor.from_local(self.to_local(), self.device_mesh, placements, run_check=False)

    def __create_write_items__(self, fqn, object):
        return self._held().__create_write_items__(fqn, object) if self._is_here else []

    def __create_chunk_list__(self):
        return self._held().__create_chunk_list__() if self._is_here else []

    def __get_tensor_shard__(self, index):
        return self.to_local()

    def __deepcopy__(self, memo):
        local = self.to_local()
        copied = local.clone() if self._is_here else local  # of zeros that nobody writes to
        return memo.setdefault(id(self), _expert_tensor(copied, self.device_mesh, self.placements[1:], self._is_here))


def _expert_tensor(local, mesh, placements, is_here):
    made = DTensor.from_local(local, mesh, [Partial(), *placements], run_check=False)
    made.__class__ = ExpertTensor
    made._is_here = is_here
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


def spread(layer, name, tensor):
    """The tensor, or what an optimizer keeps of it, as part of that of all ranks; name: of the parameter."""
    place = layer.places.get(name)
    if place is None or place.shared or layer.grid.size == 1 or tensor.dim() == 0:
        return tensor
    cut = layer.cut_of(name)
    if place.dim is None:
        return _expert_tensor(tensor, layer.grid.mesh, cut, True)
    return DTensor.from_local(tensor, layer.grid.mesh, [Shard(place.dim), *cut], run_check=False)


def _find(module, name):
    path, _, own = name.rpartition(".")
    return getattr(module.get_submodule(path), own)


def local_part(layer, name, value):
    """The reverse of spread, and own experts of a tensor of all."""
    if isinstance(value, DTensor):
        value = value.to_local()
    place, grid = layer.places.get(name), layer.grid
    if place is None or place.shared or value.dim() == 0:
        return value
    wanted = _find(layer.experts, name).shape
    cuts = [(place.dim, grid.ep_size, grid.ep_rank)] if place.dim is not None else []
    cuts += [(each.dim, grid.esp_size, grid.esp_rank) for each in layer.cut_of(name, needed=False) if each.is_shard()]
    for dim, parts, part in cuts:
        if value.dim() == len(wanted) and value.shape[dim] == parts * wanted[dim]:
            value = value.narrow(dim, part * wanted[dim], wanted[dim])
    return value


def save_hook(experts, state_dict, prefix, local_metadata):
    """Of the module of experts, behind state_dict()."""
    layer = experts.moeccl_layer
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
    zeros = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
    return _expert_tensor(zeros, layer.grid.mesh, layer.cut_of(name), False)


def load_hook(experts, state_dict, prefix, *_):
    """Of the module of experts, before load_state_dict() looks for what it needs."""
    layer = experts.moeccl_layer
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
