// Two levels of switches between nodes: as many as a leaf switch has places hang on each, and a
// core joins the leaves (a fat tree, tapered where it is oversubscribed).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "algorithms/plan.h"
#include "algorithms/topology.h"

namespace moeccl {

struct Switches {
  int nodesPerSwitch = 0;  // in the order of their numbers; 0: one switch has all
  // What the nodes of a full leaf can send together, against what its uplink to the core carries.
  double oversubscription = 1;
};

// Where a group's nodes hang. Empty where one leaf has all of them.
struct Leaves {
  std::vector<int> leafOf;  // by node
  // How much each leaf's uplink carries for the group, in units of what a node's uplink carries for
  // it. All groups make the same call at once. Those that leave the leaf share its uplink by their
  // ranks.
  std::vector<double> capacities;

  bool empty() const { return leafOf.empty(); }
  bool operator==(const Leaves&) const = default;
};

// The leaves of each of `groups`, which are ranks of the world, in their order. The world's nodes
// are numbered as they hang, leaf by leaf.
std::vector<Leaves> leavesOf(const Switches& switches, const Topology& world,
                             std::span<const std::vector<int>> groups);
// The leaves of all ranks of the world.
Leaves leavesOfAll(const Switches& switches, const Topology& world);

// What a leaf's nodes send through its uplink in each step, in blocks. Messages of a step are fluid
// flows over the uplinks of nodes and leaf. Messages that come down are taken to be no slower.
class LeafLoad {
 public:
  // Takes the leaf that an all-to-all would keep busy for longest.
  LeafLoad(const Topology& topology, const Leaves& leaves);

  // The ranks whose plans it takes. In a leaf of many nodes they are on some of these, spread
  // evenly; the other nodes are taken to send as these do.
  const std::vector<int>& ranks() const { return ranks_; }
  void add(const Plan& plan, int rank);

  // In blocks that a node's uplink carries meanwhile: until the last message of the step that
  // leaves the leaf has gone; and until all of all steps.
  double blocksIn(int lane, int step) const;
  double allBlocks() const;

 private:
  struct Sent {
    double messages = 0, blocks = 0;
  };
  struct FromNode {
    Sent inLeaf, leaving;
  };

  const Topology& topology_;
  const Leaves& leaves_;
  int leaf_ = 0;
  double capacity_ = 0;     // against those of the nodes whose plans are taken
  std::vector<int> place_;  // by node, among those; -1: none of them
  std::vector<int> ranks_;
  int nodes_ = 0;
  std::map<std::pair<int, int>, std::vector<FromNode>> sent_;  // by lane and step, then place
};

}  // namespace moeccl
