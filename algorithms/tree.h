// Binomial trees and chains over the ranks, for collectives with a root.
#pragma once

#include <vector>

#include "algorithms/topology.h"

namespace moeccl {

// One member's place in a binomial tree over members 0 .. size - 1 with root 0. In round i, whose
// distance d halves from the largest power of two below `size` down to 1, every member that is a
// multiple of 2 d has member + d as child. A tree of 8:
//
//   round 0     0 ─▶ 4
//   round 1     0 ─▶ 2      4 ─▶ 6
//   round 2     0 ─▶ 1      2 ─▶ 3      4 ─▶ 5      6 ─▶ 7
class BinomialTree {
 public:
  struct Edge {
    int member;  // the other end
    int round;   // counted from the root
  };

  BinomialTree(int size, int member) {
    for (int distance = 1; distance < size; distance *= 2) ++rounds_;
    int distance = 1 << rounds_ >> 1;
    for (int round = 0; round < rounds_; ++round, distance /= 2) {
      if (member % (2 * distance) == 0 && member + distance < size)
        children_.push_back({member + distance, round});
      if (member % (2 * distance) == distance) {
        parent_ = {member - distance, round};
        members_ = distance < size - member ? distance : size - member;
      }
    }
    if (member == 0) members_ = size;
  }

  int rounds() const { return rounds_; }
  // The edge to the parent. Member 0 has none: {-1, ...}.
  Edge parent() const { return parent_; }
  // The edges to children, in the order of their rounds: the largest subtree first.
  const std::vector<Edge>& children() const { return children_; }
  // The number of members of the subtree, which is member .. member + members() - 1.
  int members() const { return members_; }

 private:
  int rounds_ = 0, members_ = 1;
  Edge parent_{-1, 0};
  std::vector<Edge> children_;
};

// All ranks node by node, `root` and its node first: neighbours share a node but once per node.
inline std::vector<int> chainFrom(const Topology& topology, int root) {
  std::vector<int> chain{root};
  chain.reserve(static_cast<std::size_t>(topology.ranks()));
  for (int i = 0; i < topology.nodes(); ++i)
    for (int rank : topology.ranksOn((topology.nodeOf(root) + i) % topology.nodes()))
      if (rank != root) chain.push_back(rank);
  return chain;
}

// The two trees of hierarchical algorithms: one over the nodes, whose members are the root and the
// first ranks of the other nodes, and one over the ranks of each node, whose root is the node's
// member of the first.
struct NodeTrees {
  BinomialTree between, within;
  bool leads;    // the rank is its node's member of the tree between nodes
  int rootNode;  // member 0 of the tree between nodes
  int leader;    // the rank's node's
  const Topology* topology;
  int root;

  NodeTrees(const Topology& t, int rank, int root)
      : between(t.nodes(), (t.nodeOf(rank) - t.nodeOf(root) + t.nodes()) % t.nodes()),
        within(t.nodeSize(t.nodeOf(rank)), localMember(t, rank, root)),
        leads(localMember(t, rank, root) == 0),
        rootNode(t.nodeOf(root)),
        leader(leaderOf(t, t.nodeOf(rank), root)),
        topology(&t),
        root(root) {}

  // The rank that is a member of the tree between nodes.
  int rankBetween(int member) const {
    return leaderOf(*topology, (member + rootNode) % topology->nodes(), root);
  }
  // The rank that is a member of the tree of `node`.
  int rankWithin(int node, int member) const {
    const auto ranks = topology->ranksOn(node);
    const auto size = static_cast<int>(ranks.size());
    return ranks[(member + topology->localOf(leaderOf(*topology, node, root))) % size];
  }

 private:
  static int leaderOf(const Topology& t, int node, int root) {
    return node == t.nodeOf(root) ? root : t.ranksOn(node)[0];
  }
  static int localMember(const Topology& t, int rank, int root) {
    const int node = t.nodeOf(rank), size = t.nodeSize(node);
    return (t.localOf(rank) - t.localOf(leaderOf(t, node, root)) + size) % size;
  }
};

}  // namespace moeccl
