"""Which ranks of a process group share a layer's experts, and which hold replicas of them."""

import contextlib
import functools
import re

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import _StopRecomputationError

from .. import _C

ORDERS = ("esp", "ep")
_own_backends = {}  # of process groups whose backend is another
# By group and shape. They live as long as the group: when a collector of garbage came by differs between ranks.
_grids = {}


def _forget_destroyed_groups():
    alive = dist.distributed_c10d._world.pg_map
    for group in [each for each in _own_backends if each not in alive]:
        del _own_backends[group]
    for key in [each for each in _grids if each[0] not in alive]:
        del _grids[key]


def _backend_of(group):
    """moeccl's backend for the group's tensors on CPUs; one of its own beside another backend."""
    try:
        backend = group._get_backend(torch.device("cpu"))
        if backend.name() == "moeccl":
            return backend
    except RuntimeError:  # the group has none for CPUs
        pass
    if group not in _own_backends:
        store = dist.PrefixStore(f"moeccl/{group.group_name}", dist.distributed_c10d._get_default_store())
        ranks = dist.get_process_group_ranks(group)
        _own_backends[group] = _C.create(store, group.rank(), group.size(), dist.default_pg_timeout, ranks,
                                         group.group_name)
    return _own_backends[group]


def _mesh_of(group, ranks, ep_size, esp_size, order):
    """Of torch.distributed: the ranks that share the experts, by the part of experts, and by the shard where there are any."""
    everyone = dist.get_process_group_ranks(group)
    mesh = torch.tensor([everyone[rank] for rank in ranks])
    mesh = mesh.view(ep_size, esp_size) if order == "esp" else mesh.view(esp_size, ep_size).t().contiguous()
    if esp_size == 1:
        return DeviceMesh.from_group(_group_of(group, mesh.flatten().tolist()), "cpu", mesh_dim_names=("ep",))
    row, column = (mesh == dist.get_rank()).nonzero()[0].tolist()
    groups = [_group_of(group, mesh[:, column].tolist()), _group_of(group, mesh[row].tolist())]
    return DeviceMesh.from_group(groups, "cpu", mesh=mesh, mesh_dim_names=("ep", "esp"))


def _group_of(group, ranks):
    if ranks == dist.get_process_group_ranks(group):
        return group
    return dist.new_group(ranks, use_local_synchronization=True)


def _told(error):
    """What a rank has said that revoked a communicator; None where the error is another."""
    told = re.search(r".*revoked [^:]*communicator: (.*)", str(error), re.DOTALL)
    return told and told.group(1)


def revoke(sets, text):
    for ranks in sets:
        try:
            ranks.revoke(text)
        except RuntimeError:  # all is lost already, as the error says that is raised, or will be
            pass


class Grid:
    """Consecutive ranks of a group share the experts: ep_size * esp_size of them. The next as many hold replicas."""

    def __init__(self, group, mp_size, ep_size, esp_size, order):
        self.mp_size, self.ep_size, self.esp_size, self.order = mp_size, ep_size, esp_size, order
        self.group_size = group.size()
        self.size = ep_size * esp_size
        self.replicas = group.size() // self.size
        rank = group.rank()
        self.rank = rank % self.size
        if order == "esp":
            self.ep_rank, self.esp_rank = self.rank // esp_size, self.rank % esp_size
        else:
            self.ep_rank, self.esp_rank = self.rank % ep_size, self.rank // ep_size
        first = rank - self.rank
        self.ranks = list(range(first, first + self.size))
        self.replica_ranks = list(range(self.rank, group.size(), self.size))
        self.group, self.first = group, first
        self._layers = 0
        self.unfinished = set()  # numbers of layers whose backward passes have begun
        self._connect()
        self.mesh = _mesh_of(group, self.ranks, ep_size, esp_size, order)

    def _connect(self):
        self.told = {}  # how often ranks have told each other what they come with, by their set
        backend = _backend_of(self.group)
        self.set = _C.RankSet(backend, self.ranks)
        self.replica_set = self.everyone = None
        if self.replicas > 1:
            self.replica_set = _C.RankSet(backend, self.replica_ranks)
            self.everyone = _C.RankSet(backend, list(range(self.group_size)))
        self.handle = _C.Grid(self.set, self.mp_size, self.ep_size, self.esp_size, self.order == "ep")

    @functools.cached_property
    def replica_mesh(self):
        """Of torch.distributed: the ranks that have the same experts as this one, or the same shards of them. Collective over
        them, the first time."""
        everyone = dist.get_process_group_ranks(self.group)
        ranks = [everyone[each] for each in self.replica_ranks]
        return DeviceMesh.from_group(_group_of(self.group, ranks), "cpu", mesh_dim_names=("replicas",))

    @functools.cached_property
    def whole_mesh(self):
        """The mesh, and replicas as its last dimension. Collective as replica_mesh."""
        everyone = torch.tensor(dist.get_process_group_ranks(self.group))
        if self.order == "esp":
            ranks = everyone.view(self.replicas, self.ep_size, self.esp_size).permute(1, 2, 0)
        else:
            ranks = everyone.view(self.replicas, self.esp_size, self.ep_size).permute(2, 1, 0)
        if self.esp_size == 1:
            ranks = ranks[:, 0]
        groups = [*self.mesh.get_all_groups(), self.replica_mesh.get_group()]
        return DeviceMesh.from_group(groups, "cpu", mesh=ranks.contiguous(),
                                     mesh_dim_names=(*self.mesh.mesh_dim_names, "replicas"))

    @property
    def sets(self):
        return [each for each in (self.set, self.replica_set, self.everyone) if each is not None]

    def revoke(self, text):
        """Tells all ranks of the group why this one cannot go on with a pass."""
        self.handle.fail()
        revoke(self.sets, text)

    @contextlib.contextmanager
    def interruptible(self):
        """Around what ranks tell each other: what a signal's handler raises ends the pass on all ranks."""
        try:
            yield
        except dist.DistBackendError as error:
            # A peer of another set may have been told nothing, and waits in its pass for this rank.
            if told := _told(error):
                self.revoke(told)
            raise
        except BaseException as error:
            self.revoke(f"rank {self.group.rank()} of the process group: {type(error).__name__}: {error}")
            raise

    @contextlib.contextmanager
    def revoking(self, what):
        """Around what other ranks wait for: an error of this one ends it on all. what: the layer or route."""
        try:
            yield
        except _StopRecomputationError:  # of a checkpoint, which has what it needs
            raise
        except BaseException as error:  # KeyboardInterrupt, too
            self.revoke_for(error, what)
            raise

    def revoke_for(self, error, what):
        """Tells ranks that wait, or will, that this one does not come."""
        # What another rank has told goes on as it said it: not all ranks wait for the same ones.
        self.revoke(_told(error) or
                    f"rank {self.group.rank()} of the process group, {what}: {type(error).__name__}: {error}")

    def renew(self):
        """Collective over the group: exchanges go on, whatever was revoked."""
        self.handle.fail()
        self.unfinished.clear()
        self._connect()

    def number_layer(self):
        """Layers are made in the same order on all ranks."""
        self._layers += 1
        return self._layers

    def __deepcopy__(self, memo):
        return self  # copies of a layer exchange over the same ranks

    def __reduce__(self):
        raise TypeError("a moeccl.torch.MoE is bound to its process group and cannot be pickled; save its state_dict()")


def _require(condition, text):
    if not condition:
        raise ValueError(text)


def grids_on(group):
    """Those of the group, in the order in which they were made, which is the same on all ranks."""
    return [grid for key, grid in _grids.items() if key[0] is group]


def grid_of(group=None, mp_size=1, ep_size=None, esp_size=1, order="esp"):
    """The grid, made once for all layers that ask for it. Collective over the group."""
    group = group if group is not None else dist.group.WORLD
    _require(group is not None, "there is no process group; call torch.distributed.init_process_group first")
    _require(isinstance(group, dist.ProcessGroup), "this rank is not in the process group")
    ranks = group.size()
    for name, size in (("mp_size", mp_size), ("esp_size", esp_size)):
        _require(isinstance(size, int) and size >= 1, f"{name} is {size}; it must be a whole number above 0")
    if ep_size is None:
        _require(ranks % esp_size == 0, f"esp_size is {esp_size}; it must divide the {ranks} ranks of the group")
        ep_size = ranks // esp_size
    _require(isinstance(ep_size, int) and ep_size >= 1, f"ep_size is {ep_size}; it must be a whole number above 0")
    _require(ranks % (ep_size * esp_size) == 0,
             f"ep_size * esp_size is {ep_size * esp_size}; it must divide the {ranks} ranks of the group")
    _require((ep_size * esp_size) % mp_size == 0,
             f"mp_size is {mp_size}; it must divide ep_size * esp_size, {ep_size * esp_size}")
    _require(order in ORDERS, f"order is {order!r}; it must be 'esp' or 'ep': which groups are consecutive ranks")
    _forget_destroyed_groups()
    key = (group, mp_size, ep_size, esp_size, order)
    if key not in _grids:
        _grids[key] = Grid(*key)
    return _grids[key]
