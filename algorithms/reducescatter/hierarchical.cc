// Hierarchical reduce-scatter: each node adds up what it has for a rank before it crosses.
//
//   steps 0, 1, in the node:        s ─────▶ relay, which adds up
//   steps 2, 3, between the nodes:  relay ─▶ d, which adds up
//
// In node A the relay for rank d is the rank of A whose local number is d's, modulo the size of A.
// With N nodes of G ranks: messages G - 1 in the node and N - 1 between nodes per rank, bytes
// between nodes G times fewer than linear's.
#include "algorithms/reducescatter/steps.h"

namespace moeccl::reducescatter {

int hierarchicalSteps(PlanBuilder& plan, const Topology& topology, int rank, Blocks result,
                      int* step) {
  const int node = topology.nodeOf(rank), local = topology.localOf(rank);
  const int size = topology.nodeSize(node), nodes = topology.nodes();
  const std::span<const int> neighbours = topology.ranksOn(node);
  // The ranks for whom each local rank relays, itself included.
  std::vector<std::vector<int>> served(static_cast<size_t>(size));
  for (int destination : topology.nodeByNode())
    served[topology.localOf(destination) % size].push_back(destination);
  const std::vector<int>& mine = served[local];
  const auto inputs = [](const std::vector<int>& blocks) {
    BlockList list;
    for (int block : blocks) list.append(input(block));
    return list;
  };

  // In the node. Where there is no other node the sum is the result.
  const int firstRecv = plan.opCount();
  BlockList terms;
  for (int l = 0; l < size; ++l) {
    if (l == local) {
      terms.append(inputs(mine));
      continue;
    }
    BlockList arriving;
    for (int destination : mine)
      arriving.append(scratch(plan.scratch({neighbours[l], destination})));
    plan.recv({}, neighbours[l], arriving);
    terms.append(arriving);
  }
  const OpRange gathered = plan.since(firstRecv);
  for (int i = 1; i < size; ++i) {
    const int to = (local + i) % size;
    plan.send({}, neighbours[to], inputs(served[to]));
  }
  std::vector<Blocks> partial;  // as mine
  BlockList partials;
  for (int destination : mine) {
    partial.push_back(nodes == 1 ? result : scratch(plan.scratch({rank, destination})));
    partials.append(partial.back());
  }
  *step = nodes == 1 ? 2 : 4;
  const int added = plan.reduce({.step = 1}, terms, partials, {gathered});
  if (nodes == 1) return added;

  // Between the nodes.
  BlockList fromNodes;
  const int firstPartial = plan.opCount();
  for (int other = 0; other < nodes; ++other) {
    const std::span<const int> there = topology.ranksOn(other);
    if (other == node) {
      for (size_t i = 0; i < mine.size(); ++i)
        if (mine[i] == rank) fromNodes.append(partial[i]);
      continue;
    }
    const int relay = there[local % there.size()];
    const Blocks arriving = scratch(plan.scratch({relay, rank}));
    plan.recv({.step = 2}, relay, arriving);
    fromNodes.append(arriving);
  }
  const OpRange arrived = plan.since(firstPartial);
  // Start with the next node, so that no node is everybody's first target.
  size_t next = 0;
  while (next < mine.size() && topology.nodeOf(mine[next]) <= node) ++next;
  for (size_t i = 0; i < mine.size(); ++i) {
    const size_t which = (next + i) % mine.size();
    if (mine[which] != rank) plan.send({.step = 2}, mine[which], partial[which], {{added}});
  }
  return plan.reduce({.step = 3}, fromNodes, result, {{added}, arrived});
}

Plan hierarchical(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  int step;
  hierarchicalSteps(plan, topology, rank, output(0), &step);
  return plan.build();
}

}  // namespace moeccl::reducescatter
