// Recursive halving and doubling (Rabenseifner): with Q the largest power of two up to P, blocks
// are cut into Q pieces. In the first half partners at distance Q/2, Q/4, ..., 1 exchange halves of
// what they have summed so far, so that each ends up with one piece; the second half runs it
// backwards.
//
//   Q = 4:  r <-> r xor 2: half of the pieces    r <-> r xor 1: a quarter    and back again
//
// Where P is not Q, the first 2 (P - Q) ranks work in pairs: one hands its block to the other, and
// gets the result. Steps and messages 2 log2 Q (+ 2), bytes 2 (Q - 1) / Q x block (+ 2 blocks).
#include <bit>

#include "algorithms/registry.h"

namespace moeccl::allreduce {

Plan halving_doubling(const Topology& topology, const Parameters&, int rank) {
  const int ranks = topology.ranks();
  const int active = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const int pairs = ranks - active;
  const bool hasPartner = rank < 2 * pairs;
  PlanBuilder plan;
  plan.cut(active);
  // The second of a pair works for both.
  const auto rankOf = [&](int position) {
    return position < pairs ? 2 * position + 1 : position + pairs;
  };
  const int last =
      3 * std::countr_zero(static_cast<unsigned>(active)) + 2;  // step, after all others
  if (hasPartner && rank % 2 == 0) {
    plan.send({}, rank + 1, input(0, active));
    plan.recv({.step = last}, rank + 1, output(0, active));
    return plan.build();
  }

  const int position = hasPartner ? rank / 2 : rank - pairs;
  const auto newScratch = [&](int first, int count, int source) {
    int index = 0;
    for (int piece = first; piece < first + count; ++piece) index = plan.scratch({source, piece});
    return scratch(index - count + 1, count);
  };
  // Pieces [low, low + count) are mine to sum: what I have of them begins at `sums`.
  int low = 0, count = active, step = 0;
  Blocks sums = input(0, active);
  OpRange ready{0, 0};
  if (hasPartner) {
    const Blocks theirs = newScratch(0, active, rank - 1);
    const int arrived = plan.recv({.step = step++}, rank - 1, theirs);
    const Blocks both = newScratch(0, active, rank);
    ready = {plan.reduce({.step = step++}, {theirs, sums}, both, {{arrived}}), 1};
    sums = both;
  }
  if (active == 1) plan.copy({}, sums, output(0));
  for (int distance = active / 2; distance >= 1; distance /= 2) {
    count /= 2;
    const int partner = rankOf(position ^ distance);
    const bool upper = (position & distance) != 0;
    const int keep = upper ? count : 0;
    plan.send({.step = step}, partner, Blocks{sums.buffer, sums.first + count - keep, count},
              {ready});
    low += keep;
    const Blocks theirs = newScratch(low, count, partner);
    const int arrived = plan.recv({.step = step++}, partner, theirs);
    const Blocks kept{sums.buffer, sums.first + keep, count};
    sums = distance == 1 ? output(low) : newScratch(low, count, rank);
    // The lower rank's terms first, so that the order is that of the positions.
    const BlockList terms = upper ? BlockList{theirs, kept} : BlockList{kept, theirs};
    ready = {plan.reduce({.step = step++}, terms, sums, {{arrived}, ready}), 1};
  }
  std::vector<OpRange> written{ready};
  for (int distance = 1; distance < active; distance *= 2, ++step) {
    const int partner = rankOf(position ^ distance);
    plan.send({.step = step}, partner, output(low, count), written);
    const int theirs = low ^ distance;
    written.push_back({plan.recv({.step = step}, partner, output(theirs, count)), 1});
    low = low < theirs ? low : theirs;
    count *= 2;
  }
  if (hasPartner) plan.send({.step = last}, rank - 1, output(0, active), written);
  return plan.build();
}

}  // namespace moeccl::allreduce
