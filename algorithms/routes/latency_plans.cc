// Plans the exchanges of latency mode: a dispatch goes from sources to relays to the holders of
// experts, a combine the same way back. Every block is sent, whatever tokens choose.
#include <span>
#include <vector>

#include "algorithms/routes/plans.h"

namespace moeccl::routes {
namespace {

BlockList inputs(std::span<const int> ranks) {
  BlockList blocks;
  for (const int rank : ranks) blocks.append(input(rank));
  return blocks;
}

BlockList outputs(std::span<const int> ranks) {
  BlockList blocks;
  for (const int rank : ranks) blocks.append(output(rank));
  return blocks;
}

// The parts of both exchanges. Blocks that are at a relay are named by two ranks: source and holder
// of experts.
class Exchange {
 public:
  Exchange(const Topology& topology, const Way& way, int rank)
      : topology_(topology), way_(way), rank_(rank), paths_(pathsOf(topology, way, rank)) {
    plan_.lanes(3);
    plan_.relay();
  }

  // Sources send to relays, and these to holders.
  Plan dispatch() {
    const int first = plan_.opCount();
    for (const int node : otherNodes())
      if (const int relay = relayOf(topology_, way_, rank_, node); relay != rank_)
        plan_.send({kRelayLane, 0}, relay, inputs(topology_.ranksOn(node)));
    const int firstReceive = plan_.opCount();
    for (const int source : handedOn()) {
      if (source == rank_) continue;
      BlockList kept;
      for (const int holder : topology_.ranksOn(own())) kept.append(take(source, holder, source));
      plan_.recv({kRelayLane, 0}, source, kept);
    }
    const OpRange atRelay = plan_.since(firstReceive);
    for (int i = 1; i < topology_.ranks(); ++i) {
      const int holder = (rank_ + i) % topology_.ranks(), node = topology_.nodeOf(holder);
      BlockList blocks;
      for (const int source : paths_.relayed[static_cast<std::size_t>(node)])
        blocks.append(source == rank_ ? input(holder) : kept_[index(source, holder)]);
      if (!blocks.empty()) plan_.send({kHolderLane, 1}, holder, blocks, {atRelay});
    }
    for (const auto& [relay, sources] : paths_.relays)
      if (relay != rank_) plan_.recv({kHolderLane, 1}, relay, outputs(sources));
    BlockList from, to;
    for (const int source : handedOn()) {
      from.append(source == rank_ ? input(rank_) : kept_[index(source, rank_)]);
      to.append(output(source));
    }
    plan_.copy({2, 2}, from, to, {plan_.since(first)});
    return plan_.build();
  }

  // Holders send to relays, and these to sources.
  Plan combine() {
    const int first = plan_.opCount();
    for (const auto& [relay, sources] : paths_.relays)
      if (relay != rank_) plan_.send({kHolderLane, 0}, relay, inputs(sources));
    const int firstReceive = plan_.opCount();
    for (int i = 1; i < topology_.ranks(); ++i) {
      const int holder = (rank_ + topology_.ranks() - i) % topology_.ranks();
      BlockList blocks;
      for (const int source : paths_.relayed[static_cast<std::size_t>(topology_.nodeOf(holder))])
        blocks.append(source == rank_ ? output(holder) : take(source, holder, holder));
      if (!blocks.empty()) plan_.recv({kHolderLane, 0}, holder, blocks);
    }
    const OpRange atRelay = plan_.since(firstReceive);
    for (const int source : handedOn()) {
      if (source == rank_) continue;
      BlockList blocks;
      for (const int holder : topology_.ranksOn(own()))
        blocks.append(holder == rank_ ? input(source) : kept_[index(source, holder)]);
      plan_.send({kRelayLane, 1}, source, blocks, {atRelay});
    }
    for (const int node : otherNodes())
      if (const int relay = relayOf(topology_, way_, rank_, node); relay != rank_)
        plan_.recv({kRelayLane, 1}, relay, outputs(topology_.ranksOn(node)));
    plan_.copy({2, 2}, input(rank_), output(rank_), {plan_.since(first)});
    return plan_.build();
  }

 private:
  int own() const { return topology_.nodeOf(rank_); }
  // The sources whose rows for its own node this rank hands on.
  const std::vector<int>& handedOn() const {
    return paths_.relayed[static_cast<std::size_t>(own())];
  }
  std::vector<int> otherNodes() const {
    std::vector<int> nodes;
    for (int i = 1; i < topology_.nodes(); ++i) nodes.push_back((own() + i) % topology_.nodes());
    return nodes;
  }
  std::size_t index(int source, int holder) const {
    return static_cast<std::size_t>(source) * static_cast<std::size_t>(topology_.ranks()) +
           static_cast<std::size_t>(holder);
  }
  // Room for the block between two ranks, which comes from `sender`.
  Blocks take(int source, int holder, int sender) {
    if (kept_.empty()) kept_.resize(index(topology_.ranks(), 0), input(0));
    const Payload payload{sender, sender == source ? holder : source};
    return kept_[index(source, holder)] = scratch(plan_.scratch(payload));
  }

  const Topology& topology_;
  const Way& way_;
  const int rank_;
  const Paths paths_;
  PlanBuilder plan_;
  std::vector<Blocks> kept_;  // by source and holder
};

}  // namespace

Plan latencyDispatchPlan(const Topology& topology, const Way& way, int rank) {
  return Exchange(topology, way, rank).dispatch();
}

Plan latencyCombinePlan(const Topology& topology, const Way& way, int rank) {
  return Exchange(topology, way, rank).combine();
}

}  // namespace moeccl::routes
