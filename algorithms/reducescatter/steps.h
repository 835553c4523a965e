// Reduce-scatters as parts of larger plans: input[j] of all ranks is summed at rank j, into
// `result` there. They begin in step 0; the index of the op that writes `result` is returned, and
// *step is the first step after it. Only one op reads an input block (in-place: algorithms/plan.h).
#pragma once

#include "algorithms/registry.h"

namespace moeccl::reducescatter {

int linearSteps(PlanBuilder& plan, const Topology& topology, const Parameters& parameters, int rank,
                Blocks result, int* step);
int ringSteps(PlanBuilder& plan, const Topology& topology, int rank, Blocks result, int* step);
int hierarchicalSteps(PlanBuilder& plan, const Topology& topology, int rank, Blocks result,
                      int* step);

}  // namespace moeccl::reducescatter
