// SAA (Parm III-D), combine without duplicates and MP-all-gather at the same time:
//
//   lanes 0, 1:  combine of chunk 0   combine of chunk 1     combine of chunk 2   ...
//   lane 2:                           all-gather of chunk 0  all-gather of chunk 1   ...
//
// Sums are taken before the all-gather: to gather the shards' partial sums would cost esp times the
// bytes. A chunk's messages leave when those of the chunk before the last have left, so that chunks
// arrive one after another. Messages `chunks` times those of combine, and (mp - 1) for each
// all-gather.
#include <algorithm>

#include "algorithms/combineallgather/steps.h"

namespace moeccl::combineallgather {

void gatherTokens(PlanBuilder& plan, const ExpertExchange& exchange, const Grid& grid, int rank,
                  PieceRange range, At at, const std::vector<OpRange>& summed) {
  const auto allTokens = [&](int slot) {
    BlockList list;
    for (int position = 0; position < grid.ep; ++position)
      list.append(exchange.tokens(Buffer::output, position, slot, range));
    return list;
  };
  const int group = grid.mpGroupOf(rank), index = grid.mpIndexOf(rank);
  for (int i = 1; i < grid.mp; ++i) {
    const int slot = (index - i + grid.mp) % grid.mp;
    plan.recv(at, grid.mpRank(group, slot), allTokens(slot));
  }
  for (int i = 1; i < grid.mp; ++i)
    plan.send(at, grid.mpRank(group, (index + i) % grid.mp), allTokens(index), summed);
}

Plan inChunks(const Topology& topology, const Parameters& parameters, int rank, int chunks) {
  const Grid& grid = parameters.grid;
  const int slices = slicesOf(topology, grid), pieces = chunks * slices;
  const ExpertExchange exchange(topology, parameters, rank, grid.mp, pieces, true);
  PlanBuilder plan;
  plan.cut(pieces);
  plan.reserve(static_cast<size_t>(chunks) * exchange.messages());
  std::vector<OpRange> sent(static_cast<size_t>(chunks), {0, 0});
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const PieceRange range{chunk * slices, slices};
    const OpRange throttle = chunk < 2 ? OpRange{0, 0} : sent[chunk - 2];
    const std::vector<OpRange> summed =
        exchange.combine(plan, range, chunk * exchange.steps(), throttle, &sent[chunk]);
    gatherTokens(plan, exchange, grid, rank, range, {.lane = 2, .step = chunk}, summed);
  }
  return plan.build();
}

Plan pipelined(const Topology& topology, const Parameters& parameters, int rank) {
  return inChunks(topology, parameters, rank, std::max(parameters.chunks, 1));
}

}  // namespace moeccl::combineallgather
