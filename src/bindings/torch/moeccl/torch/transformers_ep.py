"""Expert parallelism of transformers over moeccl.

    distributed = DistributedConfig(fsdp_size=8, ep_size=4, ep_implementation="moeccl")
    model = AutoModelForCausalLM.from_pretrained(name, distributed_config=distributed)

transformers loads, shards, averages and saves the experts; this moves their tokens. Without it every choice of a token
is a row of its own, on its way to the expert and back.
"""

import torch
from torch.distributed import get_process_group_ranks
from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface

from .padding import UnpaddedMoE


class _BorrowedExperts(UnpaddedMoE):
    """A layer around a function of rows and offsets, whose parameters belong to somebody else."""

    whole_states = False

    def __init__(self, run, **options):
        super().__init__(torch.nn.Module(), gradients=None, **options)
        self.run = run

    def _run_experts(self, rows, begins):
        return [self.run(rows, begins)]


def _require_consecutive(tp_ranks, ep_ranks):
    """The ranks that share a batch must be neighbours among those that share the experts."""
    size = len(tp_ranks)
    groups = [ep_ranks[first:first + size] for first in range(0, len(ep_ranks), size)]
    if tp_ranks not in groups:
        raise ValueError(f"the ranks {tp_ranks} share a batch (tp_size {size}); they must be consecutive ones of those "
                         f"that share the experts, {ep_ranks}")


class MoecclEP(EPImplementation):
    """The ranks of a TP group send each token once; MoE chooses how, among its schedules."""

    wire = None  # of layers that are called for the first time from then on, as of moeccl.torch.MoE

    def __init__(self, experts, ep_mesh, tp_mesh):
        super().__init__(experts, ep_mesh, tp_mesh)
        _require_consecutive(*(get_process_group_ranks(mesh.get_group()) for mesh in (tp_mesh, ep_mesh)))
        # Before anybody shards it, to predict what experts take.
        elements = sum(each.numel() for each in experts.parameters() if each.dim() == 3)
        self.elements = elements // experts.num_experts
        self.layer = None  # made by the first call: that talks to other ranks, and this may run on the meta device

    def __call__(self, hidden_states, top_k_index, top_k_weights):
        if self.layer is None:
            self.layer = _BorrowedExperts(
                self._run, group=self.ep_mesh.get_group(), mp_size=self.tp_mesh.size(),
                num_experts=self.num_local_experts * self.ep_mesh.size(),
                hidden=max(1, self.elements // (3 * hidden_states.shape[-1])), wire=self.wire)
        return self.layer(hidden_states, top_k_index, top_k_weights)

    def _run(self, rows, offsets):
        if len(rows) == 0:
            # Connected to the parameters, so that their gradients are reduced on all ranks or none.
            index = torch.zeros(1, 1, dtype=torch.long)
            return self.experts_forward(rows.sum(0, keepdim=True), index, rows.new_ones(1, 1))[:0]
        index = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff(), output_size=len(rows))
        # Each row has one expert and counts once; the layer knows the weights.
        return self.experts_forward(rows, index[:, None], rows.new_ones(len(rows), 1))


EPImplementationInterface.register("moeccl", MoecclEP)
