// The executor's own all-reduce where it has one, as NCCL. Its plan, which says what it does and
// what it costs, and which is run elsewhere, is the ring's.
//
// Messages 2 (P - 1) per rank, bytes 2 (P - 1) / P x block per rank and on each uplink.
#include "algorithms/registry.h"

namespace moeccl::allreduce {

Plan ring(const Topology& topology, const Parameters& parameters, int rank);

Plan native(const Topology& topology, const Parameters& parameters, int rank) {
  return ring(topology, parameters, rank);
}

}  // namespace moeccl::allreduce
