// What ranks tell each other in a Begin.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/comm/communicator.h"

namespace moeccl {

// An all-to-all of host memory, `bytes` bytes for each rank. Waits for it.
void tellEachOther(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
                   const void* tells, void* told, std::size_t bytes);

// What each of these ranks, of which this is one, tells all of them, in their order: as many bytes
// as `mine` each. Collective; waits for it.
std::vector<std::vector<std::byte>> tellGroup(Communicator& communicator,
                                              const std::shared_ptr<const PlanName>& name,
                                              const std::vector<int>& ranks,
                                              const std::vector<std::byte>& mine);

}  // namespace moeccl
