// Plans dispatch and combine, straight or without duplicates, node by node by distance. Where the
// shards of an expert share a node, each carries a slice of what crosses, and they exchange slices
// there.
#include "algorithms/expert_exchange.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace moeccl {
namespace {

// Exchanges go from node to node in steps: in step t with all ranks of the node that is t further
// on, so that every link of a node is busy. So many steps are under way at once.
constexpr int kStepsAtOnce = 2;

// The node that the ranks of an ESP group share; -1: none.
int homeOf(const Topology& topology, const Grid& grid, int position) {
  const int home = topology.nodeOf(grid.rankOf(position, 0));
  for (int shard = 1; shard < grid.esp; ++shard)
    if (topology.nodeOf(grid.rankOf(position, shard)) != home) return -1;
  return home;
}

}  // namespace

int slicesOf(const Topology& topology, const Grid& grid) {
  if (topology.nodes() == 1) return 1;
  for (int position = 0; position < grid.ep; ++position)
    if (homeOf(topology, grid, position) >= 0) return grid.esp;
  return 1;
}

ExpertExchange::ExpertExchange(const Topology& topology, const Parameters& parameters, int rank,
                               int tokenSlots, int pieces, bool dedup)
    : topology_(topology),
      grid_(parameters.grid),
      experts_(parameters.experts),
      rank_(rank),
      tokenSlots_(tokenSlots),
      pieces_(pieces),
      dedup_(dedup),
      node_(topology.nodeOf(rank)),
      position_(grid_.positionOf(rank)),
      shard_(grid_.shardOf(rank)) {
  const std::int64_t chunks = dedup ? pieces / slicesOf(topology, grid_) : pieces;
  if (chunks * topology.nodes() > kMaxMessagesPerLane)
    throw NotOffered(std::to_string(chunks) + " parts between " + std::to_string(topology.nodes()) +
                     " nodes make more messages than the " + std::to_string(kMaxMessagesPerLane) +
                     " that can be told apart");
  for (int position = 0; position < grid_.ep; ++position)
    homes_.push_back(homeOf(topology, grid_, position));
}

BlockList ExpertExchange::tokens(Buffer buffer, int position, int slot, PieceRange range) const {
  BlockList list;
  for (int expert = position * experts_; expert < (position + 1) * experts_; ++expert)
    list.append({buffer, (expert * tokenSlots_ + slot) * pieces_ + range.first, range.count});
  return list;
}

BlockList ExpertExchange::ofRank(Buffer buffer, int peer, PieceRange range) const {
  BlockList list;
  for (int expert = 0; expert < experts_; ++expert)
    list.append({buffer, (expert * topology_.ranks() + peer) * pieces_ + range.first, range.count});
  return list;
}

BlockList ExpertExchange::ofNode(Buffer buffer, int node, PieceRange range) const {
  BlockList list;
  const std::span<const int> ranks = topology_.ranksOn(node);
  const auto count = static_cast<int>(ranks.size());
  const bool inLine = range.count == 1 && ranks.back() - ranks.front() == count - 1;
  for (int expert = 0; expert < experts_; ++expert) {
    const int first = expert * topology_.ranks() * pieces_ + range.first;
    if (inLine) {
      list.append({buffer, first + ranks[0] * pieces_, count, pieces_});
      continue;
    }
    for (int peer : ranks) list.append({buffer, first + peer * pieces_, range.count});
  }
  return list;
}

Blocks ExpertExchange::scratchFor(PlanBuilder& plan, int from, std::span<const int> ranks,
                                  PieceRange range) const {
  const int first = plan.scratchCount();
  for (int expert = 0; expert < experts_; ++expert)
    for (int peer : ranks) {
      const int block = (expert * topology_.ranks() + peer) * pieces_ + range.first;
      for (int piece = 0; piece < range.count; ++piece) plan.scratch({from, block + piece});
    }
  return scratch(first, plan.scratchCount() - first);
}

bool ExpertExchange::sliced(int rank, int position) const {
  if (!dedup_ || grid_.esp == 1) return false;
  const int home = homes_[static_cast<size_t>(position)];
  return home >= 0 && topology_.nodeOf(rank) != home;
}

std::vector<OpRange> ExpertExchange::dispatch(PlanBuilder& plan, PieceRange range) const {
  const int nodes = topology_.nodes();
  const auto via = [&](int owner, int expertRank) {
    return sliced(owner, grid_.positionOf(expertRank)) ? sliceOf(range, grid_.shardOf(expertRank))
                                                       : range;
  };
  if (dedup_ && slicesOf(topology_, grid_) > 1) plan.lanes(2);
  plan.reserve(messages());
  const int first = plan.opCount();
  plan.copy({}, tokens(Buffer::input, position_, ownSlot(), range),
            ofRank(Buffer::output, rank_, range));
  std::vector<OpRange> arrived;  // by distance
  for (int t = 0; t < nodes; ++t) {
    const int firstRecv = plan.opCount();
    for (int peer : topology_.ranksOn(nodeAt(-t)))
      if (peer != rank_)
        plan.recv({.step = t}, peer, ofRank(Buffer::output, peer, via(peer, rank_)));
    arrived.push_back(plan.since(firstRecv));
  }
  // The other shards' slices.
  for (int t = 1; t < nodes; ++t) {
    if (!sliced(topology_.ranksOn(nodeAt(-t))[0], position_)) continue;
    for (int shard = 0; shard < grid_.esp; ++shard)
      if (shard != shard_)
        plan.recv({.lane = 1, .step = t}, grid_.rankOf(position_, shard),
                  ofNode(Buffer::output, nodeAt(-t), sliceOf(range, shard)));
  }
  const OpRange written = plan.since(first);

  std::vector<OpRange> sent;  // by distance
  for (int t = 0; t < nodes; ++t) {
    const int firstSend = plan.opCount();
    const OpRange earlier = t < kStepsAtOnce ? OpRange{0, 0} : sent[t - kStepsAtOnce];
    for (int peer : topology_.ranksOn(nodeAt(t)))
      if (peer != rank_)
        plan.send({.step = t}, peer,
                  tokens(Buffer::input, grid_.positionOf(peer), ownSlot(), via(rank_, peer)),
                  {earlier});
    sent.push_back(plan.since(firstSend));
  }
  for (int t = 1; t < nodes; ++t) {
    if (!sliced(topology_.ranksOn(nodeAt(-t))[0], position_)) continue;
    for (int shard = 0; shard < grid_.esp; ++shard)
      if (shard != shard_)
        plan.send({.lane = 1, .step = t}, grid_.rankOf(position_, shard),
                  ofNode(Buffer::output, nodeAt(-t), sliceOf(range, shard_)), {arrived[t]});
  }
  return {written};
}

std::vector<OpRange> ExpertExchange::combine(PlanBuilder& plan, PieceRange range,
                                             OpRange* sent) const {
  const int nodes = topology_.nodes();
  plan.reserve(messages(), scratchOfSums(range.count));
  std::vector<OpRange> written;

  // Towards nodes that take slices: the shards add up, each its slice for all ranks there.
  std::vector<Blocks> sums(static_cast<size_t>(nodes), scratch(-1, 0));  // by distance
  std::vector<OpRange> added(static_cast<size_t>(nodes), {0, 0});
  for (int t = 1; t < nodes; ++t) {
    const std::span<const int> there = topology_.ranksOn(nodeAt(t));
    if (!sliced(there[0], position_)) continue;
    const PieceRange mine = sliceOf(range, shard_);
    BlockList terms;
    const int firstRecv = plan.opCount();
    for (int shard = 0; shard < grid_.esp; ++shard) {
      if (shard == shard_) {
        terms.append(ofNode(Buffer::input, nodeAt(t), mine));
        continue;
      }
      const int peer = grid_.rankOf(position_, shard);
      const Blocks theirs = scratchFor(plan, peer, there, mine);
      plan.recv({.step = 2 * t}, peer, theirs);
      terms.append(theirs);
    }
    const OpRange arrived = plan.since(firstRecv);
    for (int shard = 0; shard < grid_.esp; ++shard)
      if (shard != shard_)
        plan.send({.step = 2 * t}, grid_.rankOf(position_, shard),
                  ofNode(Buffer::input, nodeAt(t), sliceOf(range, shard)));
    sums[t] = scratchFor(plan, rank_, there, mine);
    added[t] = {plan.reduce({.step = 2 * t + 1}, terms, sums[t], {arrived}), 1};
  }

  // Blocks that come to this rank: slices are sums already; whole blocks are still to be added up.
  std::vector<BlockList> terms(static_cast<size_t>(grid_.ep));  // by position, in shard order
  std::vector<std::vector<OpRange>> arrived(terms.size());      // by position
  std::vector<int> latest(terms.size(), 0);                     // the last distance they come from
  for (int position = 0; position < grid_.ep; ++position)
    for (int shard = 0; shard < grid_.esp; ++shard) {
      const int peer = grid_.rankOf(position, shard);
      const int t = distanceFrom(peer);
      const At at{.lane = 1, .step = 2 * t};
      if (sliced(rank_, position)) {
        append(written,
               {plan.recv(at, peer,
                          tokens(Buffer::output, position, ownSlot(), sliceOf(range, shard)))});
      } else if (peer == rank_) {
        terms[position].append(ofRank(Buffer::input, rank_, range));
      } else if (grid_.esp == 1) {
        append(written, {plan.recv(at, peer, tokens(Buffer::output, position, ownSlot(), range))});
      } else {
        const Blocks theirs = scratchFor(plan, peer, {&rank_, 1}, range);
        append(arrived[position], {plan.recv(at, peer, theirs)});
        terms[position].append(theirs);
        latest[position] = std::max(latest[position], t);
      }
    }

  const int firstSend = plan.opCount();
  std::vector<OpRange> bySteps;
  for (int t = 0; t < nodes; ++t) {
    const int firstOfStep = plan.opCount();
    const OpRange earlier = t < kStepsAtOnce ? OpRange{0, 0} : bySteps[t - kStepsAtOnce];
    const std::span<const int> there = topology_.ranksOn(nodeAt(t));
    for (size_t i = 0; i < there.size(); ++i) {
      if (there[i] == rank_) continue;
      const auto width = static_cast<int>(there.size());
      const BlockList blocks =
          sums[t].count > 0 ? BlockList(Blocks{Buffer::scratch, sums[t].first + static_cast<int>(i),
                                               experts_, width})
                            : ofRank(Buffer::input, there[i], range);
      plan.send({.lane = 1, .step = 2 * t}, there[i], blocks, {added[t], earlier});
    }
    bySteps.push_back(plan.since(firstOfStep));
  }
  if (sent != nullptr) *sent = plan.since(firstSend);

  for (int position = 0; position < grid_.ep; ++position)
    if (!terms[position].empty())
      append(written,
             {plan.reduce({.lane = 1, .step = 2 * latest[position] + 1}, terms[position],
                          tokens(Buffer::output, position, ownSlot(), range), arrived[position])});
  return written;
}

}  // namespace moeccl
