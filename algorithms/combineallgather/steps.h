// Combine and MP-all-gather in `chunks` parts (Parm III-D): a part is gathered as soon as it has
// arrived and been summed, while the next is under way. With one part the two follow one another.
#pragma once

#include <vector>

#include "algorithms/expert_exchange.h"

namespace moeccl::combineallgather {

// The all-gather of these pieces of what this rank has combined, by the ops in `summed`.
void gatherTokens(PlanBuilder& plan, const ExpertExchange& exchange, const Grid& grid, int rank,
                  PieceRange range, At at, const std::vector<OpRange>& summed);

Plan inChunks(const Topology& topology, const Parameters& parameters, int rank, int chunks);

}  // namespace moeccl::combineallgather
