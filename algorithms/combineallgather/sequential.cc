// Combine without duplicates, then MP-all-gather: what pipelined.cc does, without overlap.
#include "algorithms/combineallgather/steps.h"

namespace moeccl::combineallgather {

Plan sequential(const Topology& topology, const Parameters& parameters, int rank) {
  return inChunks(topology, parameters, rank, 1);
}

}  // namespace moeccl::combineallgather
