// What ranks tell each other in a Begin.
#pragma once

#include <cstddef>
#include <memory>

#include "src/comm/communicator.h"

namespace moeccl {

// An all-to-all of host memory, `bytes` bytes for each rank. Waits for it.
void tellEachOther(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
                   const void* tells, void* told, std::size_t bytes);

}  // namespace moeccl
