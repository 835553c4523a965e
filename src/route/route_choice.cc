// Lists the algorithms that a route may take and prices them by all ranks' counts of rows. Latency
// mode chooses once, by the counts of choices drawn at random.
#include "src/route/route_choice.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

namespace moeccl {

using routes::Home;
using routes::RouteAlgorithm;

std::shared_ptr<const PlanName> RouteCandidate::callName(const char* what) const {
  return std::make_shared<PlanName>(std::string(what) + " (" + std::string(algorithm->name) + ")");
}

std::vector<RouteCandidate> candidatesOf(const RouteShape& shape, const Topology& topology,
                                         int rank) {
  std::vector<RouteCandidate> all;
  for (const RouteAlgorithm& algorithm : routes::routeAlgorithms()) {
    if (shape.algorithm != nullptr && shape.algorithm != &algorithm) continue;
    const routes::Way way = algorithm.way();
    all.push_back({&algorithm, way, pathsOf(topology, way, rank), hasRelays(topology, way)});
  }
  return all;
}

RouteCounts countsOf(const Home& home, int nodes, int own) {
  RouteCounts counts{home.tokens(), 0, 0, 0, 0, 0};
  for (int node = 0; node < nodes; ++node) {
    const Home::Share& share = home.of(node);
    const auto ranks = static_cast<std::int32_t>(share.ranks),
               legs = static_cast<std::int32_t>(share.legs);
    if (node == own) {
      counts.ranksInNode = ranks;
      counts.legsInNode = legs;
    } else {
      counts.nodesBetween += static_cast<std::int32_t>(share.tokens.size());
      counts.ranksBetween += ranks;
      counts.legsBetween += legs;
    }
  }
  return counts;
}

const RouteCandidate& cheapest(std::span<const RouteCandidate> candidates,
                               const RoutePrices& prices, const Topology& topology,
                               const RouteShape& shape, std::span<const RouteCounts> counts) {
  return *std::ranges::min_element(candidates, {}, [&](const RouteCandidate& candidate) {
    return routeSeconds(prices, topology, {candidate.relays, candidate.way.rowPerChoice}, counts,
                        shape.sentRowBytes(), shape.combineRowBytes());
  });
}

const RouteAlgorithm& algorithmOfLatency(const RouteShape& shape, const Topology& topology,
                                         int rank, const RoutePrices& prices) {
  const std::vector<RouteCandidate> candidates = candidatesOf(shape, topology, rank);
  if (candidates.size() == 1) return *candidates[0].algorithm;
  const auto tokens = static_cast<std::int32_t>(shape.maxTokens);
  std::vector<RouteCounts> all;
  std::mt19937 random(1);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(tokens) *
                                   static_cast<std::size_t>(shape.choices));
  for (int other = 0; other < topology.ranks(); ++other) {
    for (std::int32_t& expert : chosen)
      expert = static_cast<std::int32_t>(random() % static_cast<unsigned>(shape.experts.count));
    const Home home(topology, shape.experts, chosen.data(), nullptr, tokens, shape.choices);
    all.push_back(countsOf(home, topology.nodes(), topology.nodeOf(other)));
  }
  return *cheapest(candidates, prices, topology, shape, all).algorithm;
}

}  // namespace moeccl
