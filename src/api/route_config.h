// What a route is made for, from the caller's config.
#pragma once

#include "moeccl/route.h"
#include "src/comm/communicator.h"
#include "src/route/route_shape.h"

namespace moeccl {

// Throws Error where a field is wrong.
RouteShape routeShapeOf(const moecclRouteConfig_t* config, const Grid& grid, bool onGpu);
// Collective. Throws Error where ranks have different ones.
void requireSameShape(Communicator& communicator, const RouteShape& shape);

}  // namespace moeccl
