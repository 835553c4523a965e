// What dispatch, combine and their relatives share: tokens of a rank on one side, its experts on
// the other, and the exchange between the two in either direction (Parm III-C).
//
//   token side    [E][tokenSlots] blocks, E = ep x experts: what a rank has for, or gets from,
//                 expert e. tokenSlots is 1, or mp where the whole MP group's tokens are kept
//                 together; a rank exchanges only its own of them
//   expert side   [experts][P] blocks: what an expert's shard gets from, or has for, each rank
//
// A block goes whole, or, in the exchange without duplicates, cut into one slice per shard: where
// the ranks of an ESP group share a node, a block crosses to or from that node once, each slice by
// way of one shard, and the shards share it out (or sum it up) among themselves.
#pragma once

#include <vector>

#include "algorithms/registry.h"

namespace moeccl {

// Pieces [first, first + count) of every block.
struct PieceRange {
  int first = 0;
  int count = 1;
};

// Into how many slices blocks must be cut in the exchange without duplicates, the same on all
// ranks: one per shard, or 1 where no block goes in slices, because no ESP group shares a node, or
// all ranks share one.
int slicesOf(const Topology& topology, const Grid& grid);

class ExpertExchange {
 public:
  // `pieces`: of every block. With `dedup`, a range that is exchanged has one piece for each slice.
  ExpertExchange(const Topology& topology, const Parameters& parameters, int rank, int tokenSlots,
                 int pieces, bool dedup);

  // Both append ops on lanes 0 and 1 to `plan` and return those that write the output.
  //
  // dispatch: from the input's token side to the output's expert side.
  std::vector<OpRange> dispatch(PlanBuilder& plan, PieceRange range) const;
  // combine: from the input's expert side to the output's token side, summed in shard order. It
  // takes steps() steps; *sent is what is sent to token sides, unless `sent` is null.
  std::vector<OpRange> combine(PlanBuilder& plan, PieceRange range, OpRange* sent = nullptr) const;
  int steps() const { return 2 * topology_.nodes(); }
  // About as many as an exchange has: with every rank, and of each node's slices with every shard.
  size_t messages() const {
    const int sliced = dedup_ ? topology_.nodes() * grid_.esp : 0;
    return 2 * static_cast<size_t>(topology_.ranks() + sliced);
  }

  // The same in few large messages, which ranks relay for one another: by way of their nodes, where
  // `dedup` holds too, or in Bruck's rounds, where it must not be asked for. All on lane 0.
  enum class Relay { byNodes, inRounds };
  std::vector<OpRange> relayedDispatch(PlanBuilder& plan, Relay relay,
                                       const Parameters& parameters) const;
  std::vector<OpRange> relayedCombine(PlanBuilder& plan, Relay relay,
                                      const Parameters& parameters) const;

  // The token side's blocks of the experts at an EP position.
  BlockList tokens(Buffer buffer, int position, int slot, PieceRange range) const;
  int ownSlot() const { return slotOf(rank_); }

 private:
  class DispatchBundles;
  class CombineBundles;

  int slotOf(int rank) const { return tokenSlots_ == 1 ? 0 : grid_.mpIndexOf(rank); }
  PieceRange whole() const { return {0, pieces_}; }
  // What goes between a token's owner and a rank of its expert.
  PieceRange via(int owner, int expertRank) const {
    return dedup_ && sliced(owner, grid_.positionOf(expertRank))
               ? sliceOf(whole(), grid_.shardOf(expertRank))
               : whole();
  }
  // The expert side's blocks of one rank, and of those of a node.
  BlockList ofRank(Buffer buffer, int peer, PieceRange range) const;
  BlockList ofNode(Buffer buffer, int node, PieceRange range) const;
  // About as many blocks of scratch as there are for the shards' partial sums.
  size_t scratchOfSums(int pieces) const {
    return grid_.esp == 1 ? 0 : static_cast<size_t>(experts_ * topology_.ranks() * pieces);
  }
  // New scratch for what `from` has, on the expert side, for the ranks.
  Blocks scratchFor(PlanBuilder& plan, int from, std::span<const int> ranks,
                    PieceRange range) const;
  // Whether blocks between `rank` and the experts at `position` go in slices.
  bool sliced(int rank, int position) const;
  PieceRange sliceOf(PieceRange range, int shard) const { return {range.first + shard, 1}; }
  int nodeAt(int distance) const {
    return (node_ + distance + topology_.nodes()) % topology_.nodes();
  }
  int distanceFrom(int rank) const {
    return (node_ - topology_.nodeOf(rank) + topology_.nodes()) % topology_.nodes();
  }

  const Topology& topology_;
  const Grid grid_;
  const int experts_, rank_, tokenSlots_, pieces_;
  const bool dedup_;
  const int node_, position_, shard_;
  std::vector<int> homes_;  // of ESP groups, by position: their node, or -1 where it is none alone
};

}  // namespace moeccl
