// Prices dispatch and combine by counts of rows: the slowest rank or uplink decides, latency is
// added, and relays take somewhat longer.
#include "src/model/route_price.h"

#include <algorithm>
#include <cmath>

#include "src/model/alternatives.h"

namespace moeccl {
namespace {

// Large enough that a message's own costs do not count, small enough that packing it does not wait
// for long.
constexpr double kChunkBytes = 256 * 1024;
constexpr int kMostChunks = 16;
// Relays take longer where they send no fewer rows, since they wait for each other: 4 to 10 % on
// clusters of 2 and 4 nodes.
constexpr double kRelayed = 1.07;

struct Rows {
  double between, inNode;
};

Rows dispatched(const RouteTraits& traits, const RouteCounts& counts) {
  if (traits.relays)
    return {static_cast<double>(counts.nodesBetween),
            static_cast<double>(counts.ranksInNode) + counts.ranksBetween};
  if (traits.rowPerChoice)
    return {static_cast<double>(counts.legsBetween), static_cast<double>(counts.legsInNode)};
  return {static_cast<double>(counts.ranksBetween), static_cast<double>(counts.ranksInNode)};
}

Rows combined(const RouteTraits& traits, const RouteCounts& counts) {
  if (traits.relays)
    return {static_cast<double>(counts.nodesBetween),
            static_cast<double>(counts.legsInNode) + counts.legsBetween};
  return {static_cast<double>(counts.legsBetween), static_cast<double>(counts.legsInNode)};
}

// Messages of a rank to other nodes, for each chunk.
double messagesBetween(const Topology& topology, const RouteTraits& traits, int rank) {
  const int node = topology.nodeOf(rank);
  return traits.relays ? topology.nodes() - 1 : topology.ranks() - topology.nodeSize(node);
}

double passSeconds(const RoutePrices& prices, const Topology& topology, const RouteTraits& traits,
                   std::span<const RouteCounts> counts, double rowBytes, int chunks,
                   Rows (*rowsOf)(const RouteTraits&, const RouteCounts&)) {
  const Links& links = prices.links;
  double slowest = 0;
  for (int node = 0; node < topology.nodes(); ++node) {
    double uplink = 0;
    for (const int rank : topology.ranksOn(node)) {
      const Rows rows = rowsOf(traits, counts[static_cast<std::size_t>(rank)]);
      const double messages = chunks * messagesBetween(topology, traits, rank),
                   inNode = chunks * (topology.nodeSize(node) - 1);
      uplink += messages * links.gapUplink + rows.between * rowBytes * links.betaUplink;
      const double work = messages * links.overheadBetween + inNode * links.overheadInNode +
                          rowBytes * (rows.between * (links.betaBetween + 2 * links.betaMemory) +
                                      rows.inNode * (links.betaInNode + 2 * links.betaMemory));
      slowest = std::max(slowest, work * prices.sharing.slowdown);
    }
    slowest = std::max(slowest, uplink * prices.sharing.groups);
  }
  const double latency = topology.nodes() > 1 ? links.latencyBetween : links.latencyInNode;
  if (!traits.relays) return slowest + latency;
  return kRelayed * slowest + latency + links.latencyInNode;
}

double meanBetween(const Topology& topology, const RouteTraits& traits,
                   std::span<const RouteCounts> counts,
                   Rows (*rowsOf)(const RouteTraits&, const RouteCounts&)) {
  const int largest = largestNode(topology);
  double sum = 0;
  for (const int rank : topology.ranksOn(largest))
    sum += rowsOf(traits, counts[static_cast<std::size_t>(rank)]).between;
  return sum / topology.nodeSize(largest);
}

}  // namespace

double dispatchSeconds(const RoutePrices& prices, const Topology& topology,
                       const RouteTraits& traits, std::span<const RouteCounts> counts,
                       std::size_t rowBytes, int chunks) {
  return passSeconds(prices, topology, traits, counts, static_cast<double>(rowBytes), chunks,
                     dispatched);
}

double combineSeconds(const RoutePrices& prices, const Topology& topology,
                      const RouteTraits& traits, std::span<const RouteCounts> counts,
                      std::size_t rowBytes, int chunks) {
  return passSeconds(prices, topology, traits, counts, static_cast<double>(rowBytes), chunks,
                     combined);
}

double dispatchedBetween(const Topology& topology, const RouteTraits& traits,
                         std::span<const RouteCounts> counts) {
  return meanBetween(topology, traits, counts, dispatched);
}

double combinedBetween(const Topology& topology, const RouteTraits& traits,
                       std::span<const RouteCounts> counts) {
  return meanBetween(topology, traits, counts, combined);
}

double routeSeconds(const RoutePrices& prices, const Topology& topology, const RouteTraits& traits,
                    std::span<const RouteCounts> counts, std::size_t rowBytes,
                    std::size_t combineRowBytes) {
  const int chunks = routeChunks(topology, traits, counts, rowBytes);
  return dispatchSeconds(prices, topology, traits, counts, rowBytes, chunks) +
         combineSeconds(prices, topology, traits, counts, combineRowBytes, chunks);
}

int routeChunks(const Topology& topology, const RouteTraits& traits,
                std::span<const RouteCounts> counts, std::size_t rowBytes) {
  double most = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const Rows rows = dispatched(traits, counts[static_cast<std::size_t>(rank)]);
    const double between = messagesBetween(topology, traits, rank);
    const double inNode = topology.nodeSize(topology.nodeOf(rank)) - 1;
    if (between > 0) most = std::max(most, rows.between / between);
    if (inNode > 0) most = std::max(most, rows.inNode / inNode);
  }
  const double chunks = std::ceil(most * static_cast<double>(rowBytes) / kChunkBytes);
  return static_cast<int>(std::clamp(chunks, 1.0, double{kMostChunks}));
}

}  // namespace moeccl
