// Pairwise all-to-all: in step i rank r sends to r + i and receives from r - i (with P a power of
// two both partners are r xor i), and nothing else is in flight.
//
//   step 1: r -> r+1    step 2: r -> r+2    ...    step P-1: r -> r-1
//
// Steps P - 1, messages P - 1 per rank, bytes (P - 1) x block per rank. Right where many messages
// at once overload a link or a NIC; latency grows with P.
#include <bit>

#include "algorithms/registry.h"

namespace moeccl::alltoall {

Plan pairwise(const Topology& topology, const Parameters&, int rank) {
  const int ranks = topology.ranks();
  const bool mirrored = std::has_single_bit(static_cast<unsigned>(ranks));
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));
  OpRange before{0, 0};
  for (int i = 1; i < ranks; ++i) {
    const int to = mirrored ? rank ^ i : (rank + i) % ranks;
    const int from = mirrored ? rank ^ i : (rank - i + ranks) % ranks;
    const int step = plan.recv({.step = i - 1}, from, output(from));
    plan.send({.step = i - 1}, to, input(to), {before});
    before = plan.since(step);
  }
  return plan.build();
}

}  // namespace moeccl::alltoall
