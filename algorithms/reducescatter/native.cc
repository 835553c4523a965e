// The executor's own reduce-scatter where it has one, as NCCL. Its plan, which says what it does
// and what it costs, and which is run elsewhere, is the ring's.
//
// Messages P - 1 per rank, bytes (P - 1) x block per rank and on each uplink.
#include "algorithms/registry.h"

namespace moeccl::reducescatter {

Plan ring(const Topology& topology, const Parameters& parameters, int rank);

Plan native(const Topology& topology, const Parameters& parameters, int rank) {
  return ring(topology, parameters, rank);
}

}  // namespace moeccl::reducescatter
