// Tensor-parallel-aware all-to-all (DeepSpeed-MoE 5.3, figure 9): ranks of a group hold the same,
// so each sends its share, one slice of every block, and the groups put the slices together.
//
//   step 0:  (g, i) -> (other g, i): slice i
//   step 1:  (g, i) -> (g, other i): slice i of the blocks from all groups
//
// Messages P / mp - 1 between groups and mp - 1 in the group per rank; bytes between groups mp
// times fewer than direct's.
#include "algorithms/registry.h"

namespace moeccl::tpalltoall {

Plan sliced(const Topology&, const Parameters& parameters, int rank) {
  const Grid& grid = parameters.grid;
  const int groups = grid.mpGroups(), group = grid.mpGroupOf(rank), index = grid.mpIndexOf(rank);
  const int slices = grid.mp;
  PlanBuilder plan;
  plan.cut(slices);
  plan.copy({}, input(group * slices, slices), output(group * slices, slices));
  // Slice `slice` of the blocks of all other groups.
  const auto sliceOfOthers = [&](int slice) {
    BlockList list;
    for (int other = 0; other < groups; ++other)
      if (other != group) list.append(output(other * slices + slice));
    return list;
  };
  const int firstRecv = plan.opCount();
  for (int i = 1; i < groups; ++i) {
    const int from = (group - i + groups) % groups;
    plan.recv({}, grid.mpRank(from, index), output(from * slices + index));
  }
  const OpRange arrived = plan.since(firstRecv);
  for (int i = 1; i < groups; ++i) {
    const int to = (group + i) % groups;
    plan.send({}, grid.mpRank(to, index), input(to * slices + index));
  }
  if (groups == 1) return plan.build();
  for (int i = 1; i < slices; ++i) {
    const int from = (index - i + slices) % slices;
    plan.recv({.step = 1}, grid.mpRank(group, from), sliceOfOthers(from));
  }
  for (int i = 1; i < slices; ++i)
    plan.send({.step = 1}, grid.mpRank(group, (index + i) % slices), sliceOfOthers(index),
              {arrived});
  return plan.build();
}

}  // namespace moeccl::tpalltoall
