// Combine and MP-all-gather in `chunks` parts (Parm III-D): a part is gathered as soon as it has
// arrived and been summed, while the next is under way. With one part the two follow one another.
#pragma once

#include "algorithms/registry.h"

namespace moeccl::combineallgather {

Plan inChunks(const Topology& topology, const Parameters& parameters, int rank, int chunks);

}  // namespace moeccl::combineallgather
