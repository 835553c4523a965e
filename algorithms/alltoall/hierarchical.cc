// Hierarchical all-to-all (DeepSpeed-MoE 5.3, figure 8), for nodes of any sizes. Some ranks of each
// node, its leaders, talk to the other nodes for all of it.
//
//   step 0, in the node:        s ──────▶ leader         all blocks of s that it is to carry
//   step 1, between the nodes:  leader ──▶ leader there  what the node has for those it serves
//   step 2, in the node:        leader ──▶ d             everything for d
//
// The leader for rank d, in whichever node, is the one whose number is d's local number modulo the
// number of leaders there. With all ranks as leaders (the paper's way) every rank is its own
// leader: between equal nodes the exchange is among equal local ranks, and there is no step 2. A
// message carries one block per (source, destination) that it serves; gathering and scattering
// those blocks are the two data-layout transforms of the paper.
//
// With N nodes of G ranks: all ranks as leaders, G - 1 messages in the node and N - 1 between
// nodes, O(G + P/G) per rank instead of P - 1; with one leader 2 (G - 1) messages in the node and N
// - 1 from it, but all its bytes pass through one rank. Bytes between nodes as in linear.
#include "algorithms/alltoall/bundle.h"

namespace moeccl::alltoall {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));
  At at;
  exchangeByNodes(plan, topology, parameters.leaders, rank, OneBlock(), &at);
  return plan.build();
}

}  // namespace moeccl::alltoall
