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
#include <algorithm>

#include "algorithms/registry.h"

namespace moeccl::alltoall {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks();
  const int radix = std::clamp(parameters.radix, 2, std::max(ranks, 2));
  PlanBuilder plan;
  plan.relay();
  plan.copy({}, input(rank), output(rank));
  std::vector<Blocks> at;  // where the block of each position is
  for (int i = 0; i < ranks; ++i) at.push_back(input((rank + i) % ranks));
  std::vector<OpRange> arrived;  // receives, by round
  int step = 0;
  for (std::int64_t unit = 1; unit < ranks; unit *= radix, ++step) {
    const int firstSend = plan.opCount();
    std::vector<std::vector<int>> moving(static_cast<size_t>(radix));  // positions, by digit
    for (int i = 0; i < ranks; ++i) moving[static_cast<size_t>(i / unit % radix)].push_back(i);
    for (int digit = 1; digit < radix && !moving[digit].empty(); ++digit) {
      BlockList leaving;
      for (int i : moving[digit]) leaving.append(at[i]);
      const int to = static_cast<int>((rank + digit * unit) % ranks);
      plan.send({.step = step}, to, leaving, arrived);
    }
    const int firstRecv = plan.opCount();
    if (firstRecv == firstSend) continue;
    for (int digit = 1; digit < radix && !moving[digit].empty(); ++digit) {
      BlockList arriving;
      for (int i : moving[digit]) {
        const bool last = i < unit * radix;  // no digit is left
        // It started from the rank that is as far back as the digits so far say.
        const int source = static_cast<int>((rank - i % (unit * radix) + ranks) % ranks);
        at[i] = last ? output(source) : scratch(plan.scratch({source, (source + i) % ranks}));
        arriving.append(at[i]);
      }
      const int from = static_cast<int>(((rank - digit * unit) % ranks + ranks) % ranks);
      plan.recv({.step = step}, from, arriving);
    }
    arrived.push_back(plan.since(firstRecv));
  }
  return plan.build();
}

}  // namespace moeccl::alltoall
