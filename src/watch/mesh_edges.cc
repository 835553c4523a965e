// Which ranks have a control connection: those 2^j apart, and for a rank with none of these on
// another node the next one there.
#include <set>

#include "src/watch/mesh.h"

namespace moeccl {
namespace {

// The next rank of another node, if there is any.
int nextElsewhere(const Topology& topology, int rank) {
  const int ranks = topology.ranks();
  for (int distance = 1; distance < ranks; ++distance)
    if (const int other = (rank + distance) % ranks;
        topology.nodeOf(other) != topology.nodeOf(rank))
      return other;
  return -1;
}

}  // namespace

std::vector<int> controlPeers(const Topology& topology, int rank) {
  const int ranks = topology.ranks();
  const auto chords = [&](int of) {
    std::set<int> peers;
    for (int distance = 1; distance < ranks; distance *= 2) {
      peers.insert((of + distance) % ranks);
      peers.insert((of + ranks - distance) % ranks);
    }
    return peers;
  };
  const auto hasElsewhere = [&](const std::set<int>& peers, int of) {
    for (int peer : peers)
      if (topology.nodeOf(peer) != topology.nodeOf(of)) return true;
    return false;
  };
  std::set<int> peers = chords(rank);
  if (topology.nodes() > 1)
    for (int of = 0; of < ranks; ++of) {
      if (of != rank && nextElsewhere(topology, of) != rank) continue;
      if (!hasElsewhere(chords(of), of))
        peers.insert(of == rank ? nextElsewhere(topology, of) : of);
    }
  return {peers.begin(), peers.end()};
}

}  // namespace moeccl
