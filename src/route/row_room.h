// How rows share room that is too small for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/comm/communicator.h"
#include "src/route/route_shape.h"

namespace moeccl {

// Sets the choices [tokens][choices] to -1 for which the ranks of their experts have no room
// (config.maxRows), and returns how many those are. Collective, under this name.
std::int64_t admit(Communicator& communicator, const RouteShape& shape,
                   const std::shared_ptr<const PlanName>& name, std::vector<std::int32_t>& choices);

}  // namespace moeccl
