// Which ranks share a machine. A value; it knows no host, no address and no clock.
#pragma once

#include <span>
#include <vector>

namespace moeccl {

class Topology {
 public:
  // nodeOfRank[r] names the node of rank r by any number; nodes are renumbered 0, 1, ... in the
  // order in which the ranks first mention them. Throws std::invalid_argument when there is no
  // rank.
  explicit Topology(std::span<const int> nodeOfRank);

  // `nodes` nodes of `ranksPerNode` ranks each, numbered node by node.
  static Topology even(int nodes, int ranksPerNode);
  // Nodes of the given sizes, numbered node by node.
  static Topology uneven(std::span<const int> ranksPerNode);

  int ranks() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int nodeOf(int rank) const { return node_[rank]; }
  // Position of a rank among the ranks of its node, counted from 0 in rank order.
  int localOf(int rank) const { return local_[rank]; }
  int nodeSize(int node) const { return first_[node + 1] - first_[node]; }
  // The ranks of one node in rank order.
  std::span<const int> ranksOn(int node) const {
    return {byNode_.data() + first_[node], static_cast<size_t>(nodeSize(node))};
  }
  // All ranks, node by node: an order in which a walk over all ranks crosses each uplink once.
  std::span<const int> nodeByNode() const { return byNode_; }

  bool operator==(const Topology&) const = default;

 private:
  std::vector<int> node_, local_;    // by rank
  std::vector<int> byNode_, first_;  // ranks sorted by node; where each node begins
};

}  // namespace moeccl
