// The bundles of an all-to-all: one block for each rank.
#pragma once

#include "algorithms/bundles.h"

namespace moeccl::alltoall {

class OneBlock final : public Bundles {
 public:
  BlockList leaving(int destination) const override { return input(destination); }
  BlockList arriving(int source) const override { return output(source); }
  std::vector<Payload> payloads(int source, int destination) const override {
    return {{source, destination}};
  }
};

}  // namespace moeccl::alltoall
