// Hierarchical all-gather: a block crosses to every other node once, and is passed on there.
//
//   step 0:  own block -> neighbours in the node, and one rank of every other node
//   step 1:  what came from other nodes -> neighbours in the node
//
// In node B rank r's block arrives at the rank whose local number is r's, modulo the size of B.
// With N nodes of G ranks: messages N - 1 between nodes and 2 (G - 1) in the node per rank, bytes
// between nodes G times fewer than linear's.
#include "algorithms/allgather/steps.h"

namespace moeccl::allgather {

void hierarchicalSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own) {
  const int node = topology.nodeOf(rank), local = topology.localOf(rank);
  const std::span<const int> neighbours = topology.ranksOn(node);
  const int size = topology.nodeSize(node), nodes = topology.nodes();
  // What arrives from other nodes at the rank of this node with local number `l`.
  const auto arrivesAt = [&](int l) {
    BlockList blocks;
    for (int source : topology.nodeByNode())
      if (topology.nodeOf(source) != node && topology.localOf(source) % size == l)
        blocks.append(output(source));
    return blocks;
  };
  const At first{.step = own.step}, second{.step = own.step + 1};

  const int firstRecv = plan.opCount();
  for (int i = 1; i < nodes; ++i)
    for (int source : topology.ranksOn((node - i + nodes) % nodes))
      if (topology.localOf(source) % size == local) plan.recv(first, source, output(source));
  const OpRange arrived = plan.since(firstRecv);
  for (int i = 1; i < size; ++i) {
    const int from = (local - i + size) % size;
    plan.recv(first, neighbours[from], output(neighbours[from]));
  }
  for (int i = 1; i < nodes; ++i) {
    const std::span<const int> there = topology.ranksOn((node + i) % nodes);
    plan.send(first, there[local % there.size()], own.block, {own.ready});
  }
  for (int i = 1; i < size; ++i)
    plan.send(first, neighbours[(local + i) % size], own.block, {own.ready});

  for (int i = 1; i < size; ++i) {
    const int from = (local - i + size) % size;
    const BlockList blocks = arrivesAt(from);
    if (!blocks.empty()) plan.recv(second, neighbours[from], blocks);
  }
  const BlockList passedOn = arrivesAt(local);
  for (int i = 1; i < size && !passedOn.empty(); ++i)
    plan.send(second, neighbours[(local + i) % size], passedOn, {arrived});
}

Plan hierarchical(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(rank));
  hierarchicalSteps(plan, topology, rank, {input(0)});
  return plan.build();
}

}  // namespace moeccl::allgather
