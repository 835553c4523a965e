// Makes the kind of pass that a route's shape asks for.
#include "src/route/route_pass.h"

#include "src/route/gpu_latency_pass.h"
#include "src/route/latency_pass.h"
#include "src/route/schedule_pass.h"
#include "src/route/throughput_pass.h"
#include "src/route/token_rows_pass.h"

namespace moeccl {

std::shared_ptr<RoutePass> RoutePass::make(Communicator& communicator, const RouteShape& shape,
                                           const RoutePrices& prices, RouteSchedules* schedules) {
  if (schedules != nullptr)
    return std::make_shared<SchedulePass>(communicator, shape, prices, *schedules);
  if (shape.rowsByToken) return std::make_shared<TokenRowsPass>(communicator, shape, prices);
  if (!shape.latency) return std::make_shared<ThroughputPass>(communicator, shape, prices);
  if (communicator.device()) return std::make_shared<GpuLatencyPass>(communicator, shape, prices);
  return std::make_shared<LatencyPass>(communicator, shape, prices);
}

void RoutePass::combineBackward(Communicator&, const void*, const void*, void*, void*, void*) {
  throw Error(moecclInternalError, "a gradient of a route in latency mode");
}

void RoutePass::returnWeights(Communicator&, const float*, float*, void*) {
  throw Error(moecclInternalError, "gradients of weights that do not travel with rows");
}

}  // namespace moeccl
