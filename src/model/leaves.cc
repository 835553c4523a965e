// Places the nodes of groups on leaf switches, shares the leaves' uplinks among groups, and counts
// what plans send through the busiest uplink, step by step.
#include "src/model/leaves.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>

#include "src/model/alternatives.h"
#include "src/model/fluid.h"

namespace moeccl {
namespace {

// Plans take time to make.
constexpr std::size_t kMostPlanned = 4;

}  // namespace

std::vector<Leaves> leavesOf(const Switches& switches, const Topology& world,
                             std::span<const std::vector<int>> groups) {
  std::vector<Leaves> all(groups.size());
  if (switches.nodesPerSwitch == 0) return all;
  const auto leafOf = [&](int rank) {
    return static_cast<std::size_t>(world.nodeOf(rank) / switches.nodesPerSwitch);
  };
  const auto leaves = [&](const std::vector<int>& group) {
    return std::ranges::any_of(group, [&](int rank) { return leafOf(rank) != leafOf(group[0]); });
  };
  std::vector<double> leaving(static_cast<std::size_t>(world.nodes()));  // ranks, by leaf
  for (const std::vector<int>& group : groups)
    if (leaves(group))
      for (int rank : group) leaving[leafOf(rank)] += 1;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int>& group = groups[i];
    if (!leaves(group)) continue;
    std::unordered_map<int, int> onNode;
    std::unordered_map<std::size_t, int> place;
    std::vector<double> here;  // ranks, by place
    std::vector<std::size_t> leafAt;
    int largest = 0;
    for (int rank : group) {
      const std::size_t leaf = leafOf(rank);
      const int at = place.try_emplace(leaf, static_cast<int>(here.size())).first->second;
      if (at == static_cast<int>(here.size())) {
        here.push_back(0);
        leafAt.push_back(leaf);
      }
      here[static_cast<std::size_t>(at)] += 1;
      const int ranks = ++onNode[world.nodeOf(rank)];
      if (ranks == 1) all[i].leafOf.push_back(at);
      largest = std::max(largest, ranks);
    }
    // A node's uplink has its ranks of all groups.
    const double groupsOnNode = static_cast<double>(world.nodeSize(largestNode(world))) / largest;
    const double uplink = switches.nodesPerSwitch / switches.oversubscription;
    for (std::size_t at = 0; at < here.size(); ++at)
      all[i].capacities.push_back(uplink * groupsOnNode * here[at] / leaving[leafAt[at]]);
  }
  return all;
}

Leaves leavesOfAll(const Switches& switches, const Topology& world) {
  const std::vector<int> all(world.nodeByNode().begin(), world.nodeByNode().end());
  return leavesOf(switches, world, {&all, 1})[0];
}

LeafLoad::LeafLoad(const Topology& topology, const Leaves& leaves)
    : topology_(topology), leaves_(leaves), place_(static_cast<std::size_t>(topology.nodes()), -1) {
  std::vector<double> ranks(leaves.capacities.size());
  for (int node = 0; node < topology.nodes(); ++node)
    ranks[static_cast<std::size_t>(leaves.leafOf[static_cast<std::size_t>(node)])] +=
        topology.nodeSize(node);
  const auto busy = [&](std::size_t leaf) {
    return ranks[leaf] * (topology.ranks() - ranks[leaf]) / leaves.capacities[leaf];
  };
  for (std::size_t leaf = 1; leaf < ranks.size(); ++leaf)
    if (busy(leaf) > busy(static_cast<std::size_t>(leaf_))) leaf_ = static_cast<int>(leaf);
  std::vector<int> nodes;
  for (int node = 0; node < topology.nodes(); ++node)
    if (leaves.leafOf[static_cast<std::size_t>(node)] == leaf_) nodes.push_back(node);
  const std::size_t planned = std::min(nodes.size(), kMostPlanned);
  for (std::size_t i = 0; i < planned; ++i) {
    const int node = nodes[i * nodes.size() / planned];
    place_[static_cast<std::size_t>(node)] = nodes_++;
    ranks_.insert(ranks_.end(), topology.ranksOn(node).begin(), topology.ranksOn(node).end());
  }
  capacity_ = leaves.capacities[static_cast<std::size_t>(leaf_)] * static_cast<double>(planned) /
              static_cast<double>(nodes.size());
}

void LeafLoad::add(const Plan& plan, int rank) {
  const int node = topology_.nodeOf(rank);
  const auto place = static_cast<std::size_t>(place_[static_cast<std::size_t>(node)]);
  std::vector<FromNode>* nodes = nullptr;
  std::pair<int, int> last;
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::send || topology_.nodeOf(op.peer) == node) continue;
    const std::pair<int, int> at{op.lane, op.step};
    if (nodes == nullptr || at != last) {
      nodes = &sent_[at];
      nodes->resize(static_cast<std::size_t>(nodes_));
      last = at;
    }
    const int leaf = leaves_.leafOf[static_cast<std::size_t>(topology_.nodeOf(op.peer))];
    FromNode& from = (*nodes)[place];
    Sent& sent = leaf == leaf_ ? from.inLeaf : from.leaving;
    sent.messages += 1;
    sent.blocks += static_cast<double>(blockCount(plan.src(op))) / plan.pieces;
  }
}

double LeafLoad::blocksIn(int lane, int step) const {
  const auto known = sent_.find({lane, step});
  if (known == sent_.end()) return 0;
  std::vector<double> capacities(static_cast<std::size_t>(nodes_), 1);
  capacities.push_back(capacity_);
  std::vector<Flow> flows;
  for (int node = 0; node < nodes_; ++node) {
    const auto& [inLeaf, leaving] = known->second[static_cast<std::size_t>(node)];
    flows.push_back({leaving.messages, leaving.blocks, {node, nodes_}});
    flows.push_back({inLeaf.messages, inLeaf.blocks, {node}});
  }
  const std::vector<double> ends = finishTimes(flows, capacities);
  double last = 0;
  for (std::size_t i = 0; i < ends.size(); i += 2) last = std::max(last, ends[i]);
  return last;
}

double LeafLoad::allBlocks() const {
  double blocks = 0;
  for (const auto& [at, nodes] : sent_)
    for (const FromNode& from : nodes) blocks += from.leaving.blocks;
  return blocks / capacity_;
}

}  // namespace moeccl
