// Builds plans of all ranks, and lists topologies.
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

Contract contractOf(Collective collective, const Topology& topology, const Parameters& parameters) {
  return {collective, topology.ranks(), parameters.grid, parameters.experts, parameters.root};
}

std::vector<Grid> gridsOf(int ranks, int most) {
  std::vector<Grid> grids;
  for (int mp = 1; mp <= most; ++mp)
    for (int esp = 1; esp <= most; ++esp)
      for (bool espConsecutive : {true, false})
        if (ranks % mp == 0 && ranks % esp == 0 && (espConsecutive || (esp > 1 && esp < ranks)))
          grids.push_back({mp, ranks / esp, esp, espConsecutive});
  return grids;
}

Parameters randomGrid(std::mt19937& random, int ranks) {
  const std::vector<Grid> grids = gridsOf(ranks, 8);
  Parameters parameters;
  parameters.grid = grids[random() % grids.size()];
  parameters.experts = 1 + static_cast<int>(random() % 3);
  return parameters;
}

std::string nameOf(const Parameters& p) {
  return "window " + std::to_string(p.window) + ", radix " + std::to_string(p.radix) +
         ", leaders " + std::to_string(p.leaders) + ", chunks " + std::to_string(p.chunks) +
         ", mp " + std::to_string(p.grid.mp) + ", ep " + std::to_string(p.grid.ep) + ", esp " +
         std::to_string(p.grid.esp) + (p.grid.espConsecutive ? "" : " (ep consecutive)") +
         ", experts " + std::to_string(p.experts) + ", root " + std::to_string(p.root);
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
