// Pipelined reduce: sums of chunks follow each other along a chain of all ranks to the root, and
// every rank adds its own chunk to what passes. The chain crosses each uplink once.
//
//   3 ─c0▶ 2 ─c0▶ 1 ─c0▶ 0
//          3 ─c1▶ 2 ─c1▶ 1 ─c1▶ 0      ...
//
// Steps P - 2 + chunks of messages, messages `chunks` per rank, bytes one block per rank.
#include <algorithm>

#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::reduce {

Plan pipelined(const Topology& topology, const Parameters& parameters, int rank) {
  const std::vector<int> chain = chainFrom(topology, parameters.root);
  const auto place = static_cast<int>(std::ranges::find(chain, rank) - chain.begin());
  const int last = topology.ranks() - 1, chunks = std::clamp(parameters.chunks, 1, kMaxChunks);
  const int behind = last - place;  // ranks that this one's sums are of, but for its own
  PlanBuilder plan;
  plan.cut(chunks);
  if (last == 0) plan.copy({}, input(0, chunks), output(0, chunks));
  for (int chunk = 0; chunk < chunks && last > 0; ++chunk) {
    const int step = 2 * (behind + chunk);  // of what leaves
    if (behind == 0) {
      plan.send({.step = step}, chain[place - 1], input(chunk));
      continue;
    }
    const Blocks arriving = scratch(plan.scratch({rank, chunk}));
    const int arrived = plan.recv({.step = step - 2}, chain[place + 1], arriving);
    const Blocks sum = place == 0 ? output(chunk) : scratch(plan.scratch({rank, chunk}));
    const int added =
        plan.reduce({.step = step - 1}, {input(chunk), arriving}, sum, {{arrived, 1}});
    if (place > 0) plan.send({.step = step}, chain[place - 1], sum, {{added, 1}});
  }
  return plan.build();
}

}  // namespace moeccl::reduce
