// Which algorithm takes rows, of those that a route may take.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "algorithms/routes/plans.h"
#include "src/comm/plan_cache.h"
#include "src/model/route_price.h"
#include "src/route/route_shape.h"

namespace moeccl {

struct RouteCandidate {
  const routes::RouteAlgorithm* algorithm;
  routes::Way way;
  routes::Paths paths;
  bool relays;  // whether rows go by others: the same on all ranks

  // "token dispatch (node)".
  std::shared_ptr<const PlanName> callName(const char* what) const;
};

// At least one.
std::vector<RouteCandidate> candidatesOf(const RouteShape& shape, const Topology& topology,
                                         int rank);
// The counts of rows that the tokens of a rank on node `own` make.
RouteCounts countsOf(const routes::Home& home, int nodes, int own);
const RouteCandidate& cheapest(std::span<const RouteCandidate> candidates,
                               const RoutePrices& prices, const Topology& topology,
                               const RouteShape& shape, std::span<const RouteCounts> counts);
// For tokens that choose evenly, since what they choose is known to nobody in time.
const routes::RouteAlgorithm& algorithmOfLatency(const RouteShape& shape, const Topology& topology,
                                                 int rank, const RoutePrices& prices);

}  // namespace moeccl
