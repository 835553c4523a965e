// Pairs the ranks of each node, and the ranks of each two nodes.
#include "perf/fit/pairs.h"

#include <algorithm>
#include <map>

namespace moeccl::perf {
namespace {

using Nodes = std::vector<std::vector<int>>;  // ranks of each node

// Nodes in the order of their first ranks.
Nodes nodesOf(std::span<const int> nodeOfRank) {
  std::map<int, std::size_t> numbers;
  Nodes nodes;
  for (std::size_t rank = 0; rank < nodeOfRank.size(); ++rank) {
    const auto [place, isNew] = numbers.try_emplace(nodeOfRank[rank], nodes.size());
    if (isNew) nodes.emplace_back();
    nodes[place->second].push_back(static_cast<int>(rank));
  }
  return nodes;
}

void join(Pairing& pairing, int a, int b) {
  pairing.partner[static_cast<std::size_t>(a)] = b;
  pairing.partner[static_cast<std::size_t>(b)] = a;
}

}  // namespace

std::vector<Pairing> pairingsOf(std::span<const int> nodeOfRank) {
  const Nodes nodes = nodesOf(nodeOfRank);
  Pairing inside{std::vector<int>(nodeOfRank.size(), -1), "1x2"};
  Pairing between{inside.partner, "2x1"};
  for (const auto& ranks : nodes)
    for (std::size_t i = 0; i + 1 < ranks.size(); i += 2) join(inside, ranks[i], ranks[i + 1]);
  for (std::size_t node = 0; node + 1 < nodes.size(); node += 2)
    for (std::size_t i = 0; i < std::min(nodes[node].size(), nodes[node + 1].size()); ++i)
      join(between, nodes[node][i], nodes[node + 1][i]);
  std::vector<Pairing> pairings{std::move(inside), std::move(between)};
  std::erase_if(pairings, [](const Pairing& pairing) { return pairing.partner[0] < 0; });
  return pairings;
}

}  // namespace moeccl::perf
