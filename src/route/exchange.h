// An exchange of bytes between ranks that know from whom how many come: of nobody else is anything
// heard.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/comm/communicator.h"

namespace moeccl {

struct RankBytes {
  int rank;
  std::vector<std::byte> bytes;
};

// Fills the bytes of `receives`, whose sizes are as they come. What is for this rank itself, or is
// empty, is left out. Collective; returns when it is complete. Throws Error.
void exchangeRankBytes(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
                       const std::vector<RankBytes>& sends, std::vector<RankBytes>& receives);

}  // namespace moeccl
