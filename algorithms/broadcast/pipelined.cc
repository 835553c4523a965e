// Pipelined broadcast: chunks follow each other along a chain of all ranks, which crosses each
// uplink once.
//
//   step 0   0 ─c0▶ 1
//   step 1   0 ─c1▶ 1 ─c0▶ 2
//   step 2   0 ─c2▶ 1 ─c1▶ 2 ─c0▶ 3      ...
//
// Steps P - 2 + chunks, messages `chunks` per rank, bytes one block per rank: each link carries the
// block once.
#include <algorithm>

#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::broadcast {

Plan pipelined(const Topology& topology, const Parameters& parameters, int rank) {
  const std::vector<int> chain = chainFrom(topology, parameters.root);
  const auto place = static_cast<int>(std::ranges::find(chain, rank) - chain.begin());
  const int last = topology.ranks() - 1, chunks = std::clamp(parameters.chunks, 1, kMaxChunks);
  PlanBuilder plan;
  plan.cut(chunks);
  if (place == 0) plan.copy({}, input(0, chunks), output(0, chunks));
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int arrived =
        place == 0 ? -1 : plan.recv({.step = place - 1 + chunk}, chain[place - 1], output(chunk));
    if (place == last) continue;
    plan.send({.step = place + chunk}, chain[place + 1], place == 0 ? input(chunk) : output(chunk),
              {{arrived, arrived < 0 ? 0 : 1}});
  }
  return plan.build();
}

}  // namespace moeccl::broadcast
