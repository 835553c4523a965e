// Hierarchical all-to-all (DeepSpeed-MoE 5.3, figure 8), for nodes of any sizes.
//
//   step 0, in the node:        s ──────────────▶ relay       all blocks of s that the relay is to
//                                                             carry, and the one for itself
//   step 1, between the nodes:  relay ──────────▶ d           the blocks of the whole node for d
//
// The relay in node A of blocks for rank d is the rank of A whose local number is d's, modulo the
// size of A: with equal nodes the exchange between nodes is among equal local ranks. A message
// carries one block per (node, rank) pair that it serves; gathering and scattering those blocks are
// the two data-layout transforms of the paper.
//
// With N nodes of G ranks: messages G - 1 in the node and N - 1 between nodes, O(G + P/G) per rank
// instead of P - 1; bytes between nodes as in linear; every block for another node crosses its own
// node once more. Between nodes A and B go |B| messages, each of |A| blocks.
#include "algorithms/registry.h"

namespace moeccl::alltoall {

Plan hierarchical(const Topology& topology, const Parameters&, int rank) {
  const int node = topology.nodeOf(rank), local = topology.localOf(rank);
  const int nodeSize = topology.nodeSize(node);
  const std::span<const int> neighbours = topology.ranksOn(node);
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));

  // Who relays for whom: carried[l] are the ranks of other nodes that local rank l sends to.
  std::vector<BlockList> carried(nodeSize);
  std::vector<int> mine;
  for (int other = 0; other < topology.nodes(); ++other) {
    if (other == node) continue;
    for (int rankThere : topology.ranksOn(other)) {
      const int relay = topology.localOf(rankThere) % nodeSize;
      carried[relay].append(input(rankThere));
      if (relay == local) mine.push_back(rankThere);
    }
  }
  // Scratch [destination of mine][rank of this node]: one destination's message is contiguous.
  if (nodeSize > 1)
    for (int destination : mine)
      for (int neighbour : neighbours) plan.scratch({neighbour, destination});
  const int destinations = static_cast<int>(mine.size());

  const int gathering = plan.opCount();
  if (nodeSize > 1 && destinations > 0)
    plan.copy({}, carried[local], scratch(local, destinations, nodeSize));
  for (int i = 1; i < nodeSize; ++i) {
    const int from = (local - i + nodeSize) % nodeSize;
    BlockList arriving = output(neighbours[from]);
    arriving.append(scratch(from, destinations, nodeSize));
    plan.recv({}, neighbours[from], arriving);
  }
  const OpRange gathered = plan.since(gathering);
  for (int i = 1; i < nodeSize; ++i) {
    const int to = (local + i) % nodeSize;
    BlockList leaving = input(neighbours[to]);
    for (Blocks blocks : carried[to].runs()) leaving.append(blocks);
    plan.send({}, neighbours[to], leaving);
  }

  for (int i = 1; i < topology.nodes(); ++i) {
    const int other = (node - i + topology.nodes()) % topology.nodes();
    const std::span<const int> there = topology.ranksOn(other);
    BlockList arriving;
    for (int source : there) arriving.append(output(source));
    plan.recv({.step = 1}, there[local % there.size()], arriving);
  }
  // Start with the next node, so that no node is everybody's first target.
  int next = 0;
  while (next < destinations && topology.nodeOf(mine[next]) < node) ++next;
  for (int i = 0; i < destinations; ++i) {
    const int which = (next + i) % destinations;
    const BlockList leaving = nodeSize > 1 ? BlockList(scratch(which * nodeSize, nodeSize))
                                           : BlockList(input(mine[which]));
    plan.send({.step = 1}, mine[which], leaving, {gathered});
  }
  return plan.build();
}

}  // namespace moeccl::alltoall
