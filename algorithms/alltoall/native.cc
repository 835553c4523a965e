// The executor's own all-to-all where it has one, as NCCL from 2.28 on. Its plan, which says what
// it does and what it costs, and which is run elsewhere, is linear's with all sends in flight.
//
// Messages P - 1 per rank, bytes (P - 1) x block per rank.
#include "algorithms/registry.h"

namespace moeccl::alltoall {

Plan linear(const Topology& topology, const Parameters& parameters, int rank);

Plan native(const Topology& topology, const Parameters&, int rank) {
  return linear(topology, {.window = 0}, rank);
}

}  // namespace moeccl::alltoall
