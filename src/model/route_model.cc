// Counts the rows that tokens make where they choose evenly among all experts, and prices every
// routing algorithm by these counts.
#include "src/model/route_model.h"

#include <algorithm>
#include <cmath>

#include "algorithms/routes/route.h"

namespace moeccl {
namespace {

// How many rows a rank's tokens make where their choices are any of the experts, none twice.
class EvenCounts {
 public:
  EvenCounts(const Topology& topology, const Grid& grid, const EvenRouting& routing)
      : topology_(topology),
        experts_{grid, routing.experts},
        holders_(topology, grid),
        routing_(routing) {}

  // The counts of each rank of a node.
  RouteCounts of(int own) const {
    double nodesBetween = 0, ranksBetween = 0, ranksInNode = 0, legsBetween = 0, legsInNode = 0;
    std::vector<int> onNode(static_cast<std::size_t>(topology_.nodes()));
    for (int position = 0; position < experts_.grid.ep; ++position) {
      const int experts = experts_.begin(position + 1) - experts_.begin(position);
      for (const int node : holders_.nodesOf(position)) {
        const auto ranks = static_cast<double>(holders_.ranks(position, node).size());
        (node == own ? ranksInNode : ranksBetween) += ranks * oneOf(experts);
        (node == own ? legsInNode : legsBetween) +=
            ranks * routing_.choices * experts / static_cast<double>(routing_.experts);
        onNode[static_cast<std::size_t>(node)] += experts;
      }
    }
    for (int node = 0; node < topology_.nodes(); ++node)
      if (node != own) nodesBetween += oneOf(onNode[static_cast<std::size_t>(node)]);
    const auto rows = [&](double perToken) {
      return static_cast<std::int32_t>(
          std::lround(perToken * static_cast<double>(routing_.tokens)));
    };
    return {static_cast<std::int32_t>(routing_.tokens),
            rows(nodesBetween),
            rows(ranksBetween),
            rows(ranksInNode),
            rows(legsBetween),
            rows(legsInNode)};
  }

 private:
  // How likely one of so many experts is among a token's.
  double oneOf(int experts) const {
    double none = 1;
    for (int choice = 0; choice < routing_.choices; ++choice)
      none *= std::max(0.0, 1 - static_cast<double>(experts) / (routing_.experts - choice));
    return 1 - none;
  }

  const Topology& topology_;
  const routes::Experts experts_;
  const routes::Holders holders_;
  const EvenRouting& routing_;
};

}  // namespace

std::vector<RouteEstimate> routeEstimates(const RoutePrices& prices, const Topology& topology,
                                          const Grid& grid, const EvenRouting& routing) {
  const EvenCounts even(topology, grid, routing);
  std::vector<RouteCounts> ofNodes, counts;
  for (int node = 0; node < topology.nodes(); ++node) ofNodes.push_back(even.of(node));
  for (int rank = 0; rank < topology.ranks(); ++rank)
    counts.push_back(ofNodes[static_cast<std::size_t>(topology.nodeOf(rank))]);
  std::vector<RouteEstimate> all;
  for (const routes::RouteAlgorithm& algorithm : routes::routeAlgorithms()) {
    const routes::Way way = algorithm.way();
    const RouteTraits traits{hasRelays(topology, way), way.rowPerChoice};
    const int chunks = routeChunks(topology, traits, counts, routing.rowBytes);
    const auto dispatch = [&](std::size_t bytes) {
      return dispatchSeconds(prices, topology, traits, counts, bytes, bytes == 0 ? 1 : chunks);
    };
    const auto combine = [&](std::size_t bytes) {
      return combineSeconds(prices, topology, traits, counts, bytes, bytes == 0 ? 1 : chunks);
    };
    all.push_back({algorithm.name, dispatch(routing.rowBytes), combine(routing.rowBytes),
                   dispatch(0), combine(0), dispatchedBetween(topology, traits, counts),
                   combinedBetween(topology, traits, counts),
                   !traits.relays && traits.rowPerChoice});
  }
  std::ranges::stable_sort(all, {},
                           [](const RouteEstimate& it) { return it.dispatch + it.combine; });
  return all;
}

}  // namespace moeccl
