#include "tests/plans/support.h"

#include <algorithm>

namespace moeccl::testing {

std::optional<std::vector<Plan>> plansOf(const Algorithm& algorithm, const Topology& topology,
                                         const Parameters& parameters) {
  std::vector<Plan> plans;
  plans.reserve(static_cast<size_t>(topology.ranks()));
  try {
    for (int rank = 0; rank < topology.ranks(); ++rank)
      plans.push_back(algorithm.plan(topology, parameters, rank));
  } catch (const NotOffered&) {
    return std::nullopt;
  }
  return plans;
}

std::string nameOf(const Algorithm& algorithm) {
  return std::string(moeccl::nameOf(algorithm.collective)) + "_" + std::string(algorithm.name);
}

std::string nameOf(const Topology& topology) {
  std::string name;
  for (int rank = 0; rank < topology.ranks(); ++rank)
    name.append(rank > 0 ? " " : "").append(std::to_string(topology.nodeOf(rank)));
  return name;
}

std::string text(const std::vector<Violation>& violations) {
  std::string lines;
  for (const Violation& violation : violations) lines += violation.text + "\n";
  return lines;
}

std::vector<Topology> compositions(int ranks) {
  std::vector<Topology> all;
  // Bit r of `cuts`: a new node begins at rank r + 1.
  for (unsigned cuts = 0; cuts < 1u << (ranks - 1); ++cuts) {
    std::vector<int> node{0};
    for (int rank = 1; rank < ranks; ++rank)
      node.push_back(node.back() + static_cast<int>(cuts >> (rank - 1) & 1));
    all.emplace_back(node);
  }
  return all;
}

Topology roundRobin(int ranks, int nodes) {
  std::vector<int> node;
  for (int rank = 0; rank < ranks; ++rank) node.push_back(rank % nodes);
  return Topology(node);
}

Topology randomTopology(std::mt19937& random, int most) {
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  const int ranks = 1 + below(most);
  const int nodes = 1 + below(std::min(ranks, 24));
  // Squaring favours low nodes, so that sizes differ a lot.
  std::vector<int> node;
  for (int rank = 0; rank < ranks; ++rank) {
    const int high = std::max(below(nodes), below(nodes));
    node.push_back(below(high + 1));
  }
  return Topology(node);
}

}  // namespace moeccl::testing
