// What a token routing costs by each algorithm, from what all ranks bring to it: the same on all of
// them. It knows no algorithm by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/topology.h"
#include "src/model/links.h"
#include "src/model/price.h"

namespace moeccl {

// How many rows a rank's tokens make, to other nodes and in its own.
struct RouteCounts {
  std::int32_t tokens;
  std::int32_t nodesBetween;               // one for a token and node
  std::int32_t ranksBetween, ranksInNode;  // one for a token and rank
  std::int32_t legsBetween, legsInNode;    // one for a choice and shard
};

struct RouteTraits {
  bool relays, rowPerChoice;
};

struct RoutePrices {
  Links links;
  Sharing sharing;
};

// Seconds of a dispatch, and of a combine. `counts`: by rank. `rowBytes`: of a row of that
// exchange.
double dispatchSeconds(const RoutePrices& prices, const Topology& topology,
                       const RouteTraits& traits, std::span<const RouteCounts> counts,
                       std::size_t rowBytes, int chunks);
double combineSeconds(const RoutePrices& prices, const Topology& topology,
                      const RouteTraits& traits, std::span<const RouteCounts> counts,
                      std::size_t rowBytes, int chunks);
// Seconds of both, in as many chunks as routeChunks says.
double routeSeconds(const RoutePrices& prices, const Topology& topology, const RouteTraits& traits,
                    std::span<const RouteCounts> counts, std::size_t rowBytes,
                    std::size_t combineRowBytes);
// Rows that a rank sends to other nodes, of a dispatch and of a combine: the mean of the largest
// node's.
double dispatchedBetween(const Topology& topology, const RouteTraits& traits,
                         std::span<const RouteCounts> counts);
double combinedBetween(const Topology& topology, const RouteTraits& traits,
                       std::span<const RouteCounts> counts);

// Into how many chunks each rank cuts its tokens.
int routeChunks(const Topology& topology, const RouteTraits& traits,
                std::span<const RouteCounts> counts, std::size_t rowBytes);

}  // namespace moeccl
