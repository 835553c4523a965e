// Numbers nodes in the order in which ranks first name them, and lists the ranks of each.
#include "algorithms/topology.h"

#include <numeric>
#include <stdexcept>
#include <unordered_map>

namespace moeccl {

Topology::Topology(std::span<const int> nodeOfRank) {
  if (nodeOfRank.empty()) throw std::invalid_argument("a topology needs at least one rank");
  std::unordered_map<int, int> number;
  std::vector<int> sizes;
  for (int name : nodeOfRank) {
    const int node = number.try_emplace(name, static_cast<int>(number.size())).first->second;
    if (node == static_cast<int>(sizes.size())) sizes.push_back(0);
    node_.push_back(node);
    local_.push_back(sizes[node]++);
  }
  first_.assign(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), first_.begin() + 1);
  byNode_.resize(node_.size());
  for (int rank = 0; rank < ranks(); ++rank) byNode_[first_[node_[rank]] + local_[rank]] = rank;
}

Topology Topology::even(int nodes, int ranksPerNode) {
  return uneven(std::vector<int>(static_cast<size_t>(nodes), ranksPerNode));
}

Topology Topology::uneven(std::span<const int> ranksPerNode) {
  std::vector<int> nodeOfRank;
  for (size_t node = 0; node < ranksPerNode.size(); ++node)
    nodeOfRank.insert(nodeOfRank.end(), ranksPerNode[node], static_cast<int>(node));
  return Topology(nodeOfRank);
}

}  // namespace moeccl
