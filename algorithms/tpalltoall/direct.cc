// Direct all-to-all among model-parallel groups: each rank exchanges whole blocks with the ranks of
// its own index in the other groups. What groups have in common crosses mp times; to measure
// against.
//
// Messages P / mp - 1 per rank.
#include "algorithms/registry.h"

namespace moeccl::tpalltoall {

Plan direct(const Topology&, const Parameters& parameters, int rank) {
  const Grid& grid = parameters.grid;
  const int groups = grid.mpGroups(), group = grid.mpGroupOf(rank), index = grid.mpIndexOf(rank);
  PlanBuilder plan;
  plan.copy({}, input(group), output(group));
  for (int i = 1; i < groups; ++i) {
    const int from = (group - i + groups) % groups;
    plan.recv({}, grid.mpRank(from, index), output(from));
  }
  for (int i = 1; i < groups; ++i) {
    const int to = (group + i) % groups;
    plan.send({}, grid.mpRank(to, index), input(to));
  }
  return plan.build();
}

}  // namespace moeccl::tpalltoall
