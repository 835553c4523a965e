// All-gathers as parts of larger plans: every rank has one block for all, which is, or comes to be,
// where `own` says. Blocks of the others arrive in output[their rank].
#pragma once

#include "algorithms/registry.h"

namespace moeccl::allgather {

struct Own {
  Blocks block;            // one block: the input, or already output[rank]
  OpRange ready = {0, 0};  // what writes it; no ops: it is there from the start
  int step = 0;            // the first that the part may use
};

void linearSteps(PlanBuilder& plan, const Topology& topology, const Parameters& parameters,
                 int rank, const Own& own);
void ringSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own);
void recursiveDoublingSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own);
void hierarchicalSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own);

}  // namespace moeccl::allgather
