// Linear gather: every rank sends its block straight to the root.
//
// Steps 1, messages 1 per rank and P - 1 to the root, bytes one block per rank.
#include "algorithms/registry.h"

namespace moeccl::gather {

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  if (rank != parameters.root) {
    plan.send({}, parameters.root, input(0));
    return plan.build();
  }
  plan.copy({}, input(0), output(rank));
  for (int i = 1; i < topology.ranks(); ++i) {
    const int from = (rank + i) % topology.ranks();
    plan.recv({}, from, output(from));
  }
  return plan.build();
}

}  // namespace moeccl::gather
