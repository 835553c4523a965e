// Dispatch and combine as all-to-alls of bundles. Slices of blocks are shared out among the shards,
// or summed up by them, as in expert_exchange.cc, but for all nodes at once.
#include "algorithms/bundles.h"
#include "algorithms/expert_exchange.h"

namespace moeccl {

class ExpertExchange::DispatchBundles final : public Bundles {
 public:
  explicit DispatchBundles(const ExpertExchange& it) : it_(it) {}

  BlockList leaving(int destination) const override {
    return it_.tokens(Buffer::input, it_.grid_.positionOf(destination), it_.ownSlot(),
                      it_.via(it_.rank_, destination));
  }
  BlockList arriving(int source) const override {
    return it_.ofRank(Buffer::output, source, it_.via(source, it_.rank_));
  }
  BlockList held(PlanBuilder& plan, int source, int destination) const override {
    const int first = it_.grid_.positionOf(destination) * it_.experts_;
    const PieceRange range = it_.via(source, destination);
    BlockList list;
    for (int expert = first; expert < first + it_.experts_; ++expert)
      for (int piece = range.first; piece < range.first + range.count; ++piece)
        list.append(scratch(plan.scratch(
            {source, (expert * it_.tokenSlots_ + it_.slotOf(source)) * it_.pieces_ + piece})));
    return list;
  }

 private:
  const ExpertExchange& it_;
};

// Towards ranks that take slices, sums of them; else what this shard has.
class ExpertExchange::CombineBundles final : public Bundles {
 public:
  CombineBundles(const ExpertExchange& it, PlanBuilder& plan)
      : it_(it), sums_(static_cast<size_t>(it.topology_.ranks())), places_(sums_) {
    plan.reserve(0, it.scratchOfSums(it.pieces_ + 1));
    addSlices(plan);
    const int ranks = it.topology_.ranks();
    for (int source = 0; source < ranks; ++source) {
      if (source == it.rank_) continue;
      const int position = it.grid_.positionOf(source);
      const bool isSum = it.grid_.esp == 1 || it.sliced(it.rank_, position);
      places_[static_cast<size_t>(source)] =
          isSum ? it.tokens(Buffer::output, position, it.ownSlot(), it.via(it.rank_, source))
                : BlockList(it.scratchFor(plan, source, {&it.rank_, 1}, it.whole()));
    }
  }

  BlockList leaving(int destination) const override {
    const BlockList& sums = sums_[static_cast<size_t>(destination)];
    return sums.empty() ? it_.ofRank(Buffer::input, destination, it_.whole()) : sums;
  }
  OpRange ready(int destination) const override {
    return sums_[static_cast<size_t>(destination)].empty() ? OpRange{0, 0} : added_;
  }
  BlockList arriving(int source) const override { return places_[static_cast<size_t>(source)]; }
  BlockList held(PlanBuilder& plan, int source, int destination) const override {
    return it_.scratchFor(plan, source, {&destination, 1}, it_.via(destination, source));
  }

 private:
  // Steps 0 and 1: the shards add up, each its slice for all ranks of other nodes.
  void addSlices(PlanBuilder& plan) {
    std::vector<int> owners;
    for (int rank : it_.topology_.nodeByNode())
      if (it_.sliced(rank, it_.position_)) owners.push_back(rank);
    if (owners.empty()) return;
    const PieceRange mine = it_.sliceOf(it_.whole(), it_.shard_);
    const auto inputs = [&](PieceRange slice) {
      BlockList list;
      for (int expert = 0; expert < it_.experts_; ++expert)
        for (int owner : owners)
          list.append(input((expert * it_.topology_.ranks() + owner) * it_.pieces_ + slice.first));
      return list;
    };
    BlockList terms;
    const int firstRecv = plan.opCount();
    for (int shard = 0; shard < it_.grid_.esp; ++shard) {
      if (shard == it_.shard_) {
        terms.append(inputs(mine));
        continue;
      }
      const int peer = it_.grid_.rankOf(it_.position_, shard);
      const Blocks theirs = it_.scratchFor(plan, peer, owners, mine);
      plan.recv({}, peer, theirs);
      terms.append(theirs);
    }
    const OpRange arrived = plan.since(firstRecv);
    for (int shard = 0; shard < it_.grid_.esp; ++shard)
      if (shard != it_.shard_)
        plan.send({}, it_.grid_.rankOf(it_.position_, shard),
                  inputs(it_.sliceOf(it_.whole(), shard)));
    const Blocks sums = it_.scratchFor(plan, it_.rank_, owners, mine);
    added_ = {plan.reduce({.step = 1}, terms, sums, {arrived})};
    const auto width = static_cast<int>(owners.size());
    for (int i = 0; i < width; ++i)
      sums_[static_cast<size_t>(owners[static_cast<size_t>(i)])] =
          Blocks{Buffer::scratch, sums.first + i, it_.experts_, width};
  }

  const ExpertExchange& it_;
  std::vector<BlockList> sums_;    // by destination; empty: none
  std::vector<BlockList> places_;  // by source
  OpRange added_{0, 0};
};

namespace {

std::vector<OpRange> exchange(PlanBuilder& plan, ExpertExchange::Relay relay,
                              const Topology& topology, const Parameters& parameters, int rank,
                              const Bundles& bundles, At* at) {
  return relay == ExpertExchange::Relay::byNodes
             ? exchangeByNodes(plan, topology, parameters.leaders, rank, bundles, at)
             : exchangeInRounds(plan, topology, parameters.radix, rank, bundles, at);
}

}  // namespace

std::vector<OpRange> ExpertExchange::relayedDispatch(PlanBuilder& plan, Relay relay,
                                                     const Parameters& parameters) const {
  const OpRange own{plan.copy({}, tokens(Buffer::input, position_, ownSlot(), whole()),
                              ofRank(Buffer::output, rank_, whole()))};
  At at;
  std::vector<OpRange> written =
      exchange(plan, relay, topology_, parameters, rank_, DispatchBundles(*this), &at);
  const std::vector<OpRange> arrived = written;
  written.push_back(own);
  // The other shards' slices, of the tokens of all nodes.
  BlockList mine;
  std::vector<BlockList> theirs(static_cast<size_t>(grid_.esp));
  for (int t = 1; t < topology_.nodes(); ++t) {
    if (!sliced(topology_.ranksOn(nodeAt(-t))[0], position_)) continue;
    mine.append(ofNode(Buffer::output, nodeAt(-t), sliceOf(whole(), shard_)));
    for (int shard = 0; shard < grid_.esp; ++shard)
      theirs[static_cast<size_t>(shard)].append(
          ofNode(Buffer::output, nodeAt(-t), sliceOf(whole(), shard)));
  }
  if (mine.empty()) return written;
  for (int shard = 0; shard < grid_.esp; ++shard)
    if (shard != shard_)
      written.push_back(
          {plan.recv(at, grid_.rankOf(position_, shard), theirs[static_cast<size_t>(shard)])});
  for (int shard = 0; shard < grid_.esp; ++shard)
    if (shard != shard_) plan.send(at, grid_.rankOf(position_, shard), mine, arrived);
  return written;
}

std::vector<OpRange> ExpertExchange::relayedCombine(PlanBuilder& plan, Relay relay,
                                                    const Parameters& parameters) const {
  const CombineBundles bundles(*this, plan);
  At at{.step = 2};
  const std::vector<OpRange> arrived =
      exchange(plan, relay, topology_, parameters, rank_, bundles, &at);
  std::vector<OpRange> written = arrived;
  // Slices are sums already; whole blocks are still to be added up, in shard order.
  for (int position = 0; position < grid_.ep; ++position) {
    if (sliced(rank_, position) || (grid_.esp == 1 && position != position_)) continue;
    BlockList terms;
    for (int shard = 0; shard < grid_.esp; ++shard) {
      const int peer = grid_.rankOf(position, shard);
      terms.append(peer == rank_ ? ofRank(Buffer::input, rank_, whole()) : bundles.arriving(peer));
    }
    written.push_back(
        {plan.reduce(at, terms, tokens(Buffer::output, position, ownSlot(), whole()), arrived)});
  }
  return written;
}

}  // namespace moeccl
