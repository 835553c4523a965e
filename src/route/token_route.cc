#include "src/route/token_route.h"

#include "src/error.h"
#include "src/route/gpu_latency_route.h"
#include "src/route/latency_route.h"
#include "src/route/throughput_route.h"

namespace moeccl {

std::shared_ptr<TokenRoute> TokenRoute::make(Communicator& communicator, const RouteShape& shape,
                                             const RoutePrices& prices) {
  if (!shape.latency) return std::make_shared<ThroughputRoute>(communicator, shape, prices);
  if (communicator.device()) return std::make_shared<GpuLatencyRoute>(communicator, shape, prices);
  return std::make_shared<LatencyRoute>(communicator, shape, prices);
}

void TokenRoute::combineBackward(Communicator&, const void*, const void*, void*, float*, void*) {
  throw Error(moecclInternalError, "a backward pass of a route in latency mode");
}

}  // namespace moeccl
