// Bruck's all-to-all, for blocks so small that the number of messages is all that counts. Seen from
// rank r, position i is the block for rank r + i. It travels digit by digit of i, written to the
// base `radix`: with digit k = d it goes d * radix^k ranks on in round k, together with all others
// that do.
//
//   radix 2, P = 8:   round 0: odd positions -> r+1   round 1: 2, 3, 6, 7 -> r+2   round 2: 4..7 ->
//   r+4
//
// Rounds ceil(log_radix P), messages at most radix - 1 a round; a block travels as often as its
// position has digits other than 0: bytes per rank about (radix - 1) / radix x log_radix P x P x
// block. Radix P is the linear all-to-all. What a rank receives in a round that is not a block's
// last waits in scratch.
#include "algorithms/alltoall/bundle.h"

namespace moeccl::alltoall {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));
  At at;
  exchangeInRounds(plan, topology, parameters.radix, rank, OneBlock(), &at);
  return plan.build();
}

}  // namespace moeccl::alltoall
