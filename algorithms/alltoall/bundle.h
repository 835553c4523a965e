// The bundles of an all-to-all: one block for each rank.
#pragma once

#include "algorithms/bundles.h"

namespace moeccl::alltoall {

class OneBlock final : public Bundles {
 public:
  BlockList leaving(int destination) const override { return input(destination); }
  BlockList arriving(int source) const override { return output(source); }
  BlockList held(PlanBuilder& plan, int source, int destination) const override {
    return scratch(plan.scratch({source, destination}));
  }
};

}  // namespace moeccl::alltoall
