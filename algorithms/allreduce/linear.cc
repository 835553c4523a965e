// Linear all-reduce: blocks are cut into P pieces; a linear reduce-scatter, then a linear
// all-gather. Every piece is added up at once, in rank order, by one rank: the sum is rounded once.
//
// Messages 2 (P - 1) per rank, bytes 2 (P - 1) / P x block per rank.
#include "algorithms/allgather/steps.h"
#include "algorithms/reducescatter/steps.h"

namespace moeccl::allreduce {

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  plan.cut(topology.ranks());
  int step;
  const int summed =
      reducescatter::linearSteps(plan, topology, parameters, rank, output(rank), &step);
  allgather::linearSteps(plan, topology, parameters, rank, {output(rank), {summed}, step});
  return plan.build();
}

}  // namespace moeccl::allreduce
