// Recursive doubling: in each step a rank passes on all that it has, so that after step k it has
// the blocks of 2^(k+1) ranks.
//
//   P a power of two:  step k: all that I have <-> r xor 2^k
//   other P (Bruck):   step k: all that I have -> r - 2^k, as much as that one lacks <- r + 2^k
//
// Steps and messages ceil(log2 P), bytes (P - 1) x block per rank.
#include <algorithm>
#include <bit>

#include "algorithms/allgather/steps.h"

namespace moeccl::allgather {

void recursiveDoublingSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own) {
  const int ranks = topology.ranks();
  const bool mirrored = std::has_single_bit(static_cast<unsigned>(ranks));
  std::vector<OpRange> ready{own.ready};
  int step = own.step;
  for (int distance = 1; distance < ranks; distance *= 2, ++step) {
    const int count = std::min(distance, ranks - distance);
    const int to = mirrored ? rank ^ distance : (rank - distance + ranks) % ranks;
    const int from = mirrored ? rank ^ distance : (rank + distance) % ranks;
    // The blocks of `count` ranks from `first` on, around the end.
    const auto blocks = [&](int first) {
      BlockList list;
      for (int i = 0; i < count; ++i) {
        const int owner = (first + i) % ranks;
        list.append(owner == rank ? own.block : output(owner));
      }
      return list;
    };
    const int mine = mirrored ? rank & ~(distance - 1) : rank;
    const int theirs = mirrored ? mine ^ distance : from;
    // First, as linear does: of two ranks the plans are the same.
    const int arrived = plan.recv({.step = step}, from, blocks(theirs));
    plan.send({.step = step}, to, blocks(mine), ready);
    ready.push_back({arrived, 1});
  }
}

Plan recursive_doubling(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(rank));
  recursiveDoublingSteps(plan, topology, rank, {input(0)});
  return plan.build();
}

}  // namespace moeccl::allgather
