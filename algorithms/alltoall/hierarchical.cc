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
#include <algorithm>

#include "algorithms/registry.h"

namespace moeccl::alltoall {
namespace {

// Who leads for whom.
class Leadership {
 public:
  Leadership(const Topology& topology, int leaders) : topology_(topology), leaders_(leaders) {}

  int count(int node) const {
    const int size = topology_.nodeSize(node);
    return leaders_ > 0 ? std::min(leaders_, size) : size;
  }
  int leaderFor(int node, int destination) const {
    return topology_.ranksOn(node)[topology_.localOf(destination) % count(node)];
  }
  // The ranks of `there` that `leader`, of its own node, carries blocks for, and that `leaderThere`
  // serves.
  std::vector<int> served(int leader, int there, int leaderThere) const {
    std::vector<int> destinations;
    for (int destination : topology_.ranksOn(there))
      if (leaderFor(topology_.nodeOf(leader), destination) == leader &&
          leaderFor(there, destination) == leaderThere)
        destinations.push_back(destination);
    return destinations;
  }

 private:
  const Topology& topology_;
  const int leaders_;
};

class Hierarchical {
 public:
  Hierarchical(const Topology& topology, int leaders, int rank)
      : topology_(topology),
        leads_(topology, leaders),
        rank_(rank),
        node_(topology.nodeOf(rank)),
        neighbours_(topology.ranksOn(node_)),
        at_(static_cast<size_t>(topology.ranks()), {Buffer::scratch, -1, 0}) {}

  Plan build() {
    plan_.relay();
    plan_.copy({}, input(rank_), output(rank_));
    gather();
    exchange();
    scatter();
    return plan_.build();
  }

 private:
  // What the ranks of this node have for `destination`, for whom I lead.
  Blocks gathered(int destination) const { return at_[static_cast<size_t>(destination)]; }

  // Step 0. Both ends of a message go through the destinations in the same order.
  void gather() {
    const int size = topology_.nodeSize(node_), local = topology_.localOf(rank_);
    std::vector<BlockList> leaving(static_cast<size_t>(size)), arriving(leaving);  // by local rank
    BlockList own, ownPlaces;
    for (int destination : topology_.nodeByNode()) {
      const int leader = leads_.leaderFor(node_, destination);
      if (destination != rank_ && leader != rank_)
        leaving[topology_.localOf(leader)].append(input(destination));
      if (leader != rank_) continue;
      for (int source : neighbours_) {
        if (source == destination) continue;
        Blocks place = output(source);
        if (destination != rank_ && size == 1) place = input(destination);
        if (destination != rank_ && size > 1) place = scratch(plan_.scratch({source, destination}));
        Blocks& all = at_[static_cast<size_t>(destination)];
        if (destination != rank_ && all.count++ == 0) all = place;
        if (source != rank_) {
          arriving[topology_.localOf(source)].append(place);
        } else if (size > 1) {
          own.append(input(destination));
          ownPlaces.append(place);
        }
      }
    }
    const int first = plan_.opCount();
    if (!own.empty()) plan_.copy({}, own, ownPlaces);
    for (int i = 1; i < size; ++i) {
      const int from = (local - i + size) % size;
      if (!arriving[from].empty()) plan_.recv({}, neighbours_[from], arriving[from]);
    }
    ready_.push_back(plan_.since(first));
    for (int i = 1; i < size; ++i) {
      const int to = (local + i) % size;
      if (!leaving[to].empty()) plan_.send({}, neighbours_[to], leaving[to]);
    }
  }

  // Step 1. It starts with the next node, so that no node is everybody's first target.
  void exchange() {
    const int nodes = topology_.nodes();
    const int first = plan_.opCount();
    for (int i = 1; i < nodes; ++i) {
      const int from = (node_ - i + nodes) % nodes;
      for (int l = 0; l < leads_.count(from); ++l) {
        const int leader = topology_.ranksOn(from)[l];
        BlockList arriving;
        for (int destination : leads_.served(leader, node_, rank_))
          for (int source : topology_.ranksOn(from)) {
            Blocks place = output(source);
            if (destination != rank_) {
              place = scratch(plan_.scratch({source, destination}));
              relayed_.push_back({destination, source, place});
            }
            arriving.append(place);
          }
        if (!arriving.empty()) plan_.recv({.step = 1}, leader, arriving);
      }
    }
    const OpRange arrived = plan_.since(first);
    for (int i = 1; i < nodes; ++i) {
      const int to = (node_ + i) % nodes;
      for (int l = 0; l < leads_.count(to); ++l) {
        const int leader = topology_.ranksOn(to)[l];
        BlockList leaving;
        for (int destination : leads_.served(rank_, to, leader))
          leaving.append(gathered(destination));
        if (!leaving.empty()) plan_.send({.step = 1}, leader, leaving, ready_);
      }
    }
    ready_.push_back(arrived);
  }

  // Step 2. Sources in order, those of the node first, then as they came.
  void scatter() {
    const int leader = leads_.leaderFor(node_, rank_);
    if (leader != rank_) {
      BlockList arriving;
      for (int source : neighbours_)
        if (source != rank_) arriving.append(output(source));
      for (int i = 1; i < topology_.nodes(); ++i) {
        const int from = (node_ - i + topology_.nodes()) % topology_.nodes();
        for (int l = 0; l < leads_.count(from); ++l) {
          const int there = topology_.ranksOn(from)[l];
          if (leads_.leaderFor(from, rank_) != there) continue;
          for (int source : topology_.ranksOn(from)) arriving.append(output(source));
        }
      }
      plan_.recv({.step = 2}, leader, arriving);
    }
    for (int destination : neighbours_) {
      if (destination == rank_ || leads_.leaderFor(node_, destination) != rank_) continue;
      BlockList leaving = gathered(destination);
      for (const Relayed& block : relayed_)
        if (block.destination == destination) leaving.append(block.place);
      plan_.send({.step = 2}, destination, leaving, ready_);
    }
  }

  struct Relayed {
    int destination, source;
    Blocks place;
  };

  const Topology& topology_;
  const Leadership leads_;
  const int rank_, node_;
  const std::span<const int> neighbours_;
  PlanBuilder plan_;
  std::vector<Blocks> at_;        // by destination: see gathered()
  std::vector<Relayed> relayed_;  // from other nodes, for those whom I serve
  std::vector<OpRange> ready_;    // what sends of the next step wait for
};

}  // namespace

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  return Hierarchical(topology, parameters.leaders, rank).build();
}

}  // namespace moeccl::alltoall
