// What token routing costs on a grid before anybody knows what tokens choose: every rank's choose
// evenly among all experts. The same on all ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "algorithms/grid.h"
#include "src/model/route_price.h"

namespace moeccl {

struct EvenRouting {
  int experts, choices;
  std::int64_t tokens;  // of each rank
  std::size_t rowBytes;
};

struct RouteEstimate {
  std::string_view algorithm;
  // Seconds of a dispatch and of a combine.
  double dispatch, combine;
  // Seconds of these with rows of no bytes.
  double dispatchLatency, combineLatency;
  // Rows that a rank sends to other nodes: the mean of the largest node's.
  double dispatchedBetween, combinedBetween;
  // Whether a row goes for each choice, straight to its experts: what an all-to-all-v does too.
  bool isAllToAllv;
};

// By every algorithm, in the order in which a route that chooses would take them: the fastest
// first.
std::vector<RouteEstimate> routeEstimates(const RoutePrices& prices, const Topology& topology,
                                          const Grid& grid, const EvenRouting& routing);

}  // namespace moeccl
