// node: a token once to each node that holds one of its experts, to the source's peer there, which
// hands it on.
//
//   source --row--> peer on each node with an expert of it --row--> each rank there with one
//          <--sum--                                        <--row of each choice--
//
// Rows that leave a node, for each token: as many as there are such other nodes; the same back. A
// rank exchanges with one rank of each other node, and with those of its own. Peers: the ranks of a
// node in turn, where nodes differ in size.
#include "algorithms/routes/route.h"

namespace moeccl::routes {

Way node() {
  return {.relay = [](const Topology& topology, int source, int node) {
    return topology.ranksOn(node)[topology.localOf(source) % topology.nodeSize(node)];
  }};
}

}  // namespace moeccl::routes
