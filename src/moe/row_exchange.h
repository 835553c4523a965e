// How rows go to experts and back in layers without capacity, by moecclAllToAllv: what moecclDispatch and
// moecclCombine do for places, for as many rows as there are. An expert's rows that came the same way lie
// together: a run. Every array is followed by [embedding]:
//
//   own        [N_EP][E_local] runs           the caller's, by expert
//     | EP-AlltoAllv
//              [N_EP][E_local] runs           by the EP rank they came from
//     | ESP-AllGather: the shards of an expert all get its rows
//              [N_ESP][N_EP][E_local] runs    by the rank that they came from
//     | regrouped
//   given      [E_local][N_ESP][N_EP] runs
//
// And back, where the ESP-AllGather's mirror adds the partial sums of the shards in their order. So a row
// crosses to the ESP group of its expert once, and is copied there, like moecclDispatch's by dedup; where an
// ESP group spans nodes it goes on from there, as often as with flat.
//
// Bytes that leave a rank each way, where r rows are its own and as many arrive, in bytes:
// (1 - 1 / N_EP) r and (N_ESP - 1) r.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/moe/compute.h"
#include "src/moe/groups.h"
#include "src/moe/phases.h"
#include "src/moe/places.h"

namespace moeccl {

// What it is made with must outlive it. Memory, elements and streams as in compute.h.
class RowExchange {
 public:
  RowExchange(const Groups& groups, Compute& compute, Phases& phases);

  // Tells the experts' ranks how many rows they will get: begins [experts + 1], where each expert's own run
  // begins. Collective over the grid.
  moecclResult_t agree(const std::int64_t* begins, moecclStream_t stream);
  // The same where each rank has the rows of all ranks of its ESP group: begins [N_ESP], of each.
  moecclResult_t agreeOnGroup(const std::vector<const std::int64_t*>& begins,
                              moecclStream_t stream);

  // What follows is as agreed last.

  std::int64_t own() const { return ownRows_; }
  std::int64_t given() const { return expertBegins_.back(); }
  // Rows that dispatch and combine need room for in each of the two matrices of `places`.
  std::int64_t room() const;
  // Where each of the caller's experts begins in what is given, [localExperts + 1].
  const std::int64_t* expertBegins() const { return expertBegins_.data(); }
  // What came from the rank (ep, esp) for one of them, in what is given.
  struct Run {
    std::int64_t begin, count;
  };
  Run run(int esp, int ep, std::int64_t expert) const {
    return {begins_[indexOf(esp, ep, expert)], runs_[indexOf(esp, ep, expert)]};
  }

  // places from own rows to given ones. Where collectives are on a stream that computation is not on, that has to
  // be synchronised before finishDispatch, and places are not to be touched before.
  moecclResult_t startDispatch(Places& places, moecclStream_t stream);
  void finishDispatch(Places& places, moecclStream_t stream);
  // The same after agreeOnGroup, of the whole group's rows [N_EP][N_ESP][E_local] runs, in one EP-AlltoAllv.
  moecclResult_t dispatchGroup(Places& places, moecclStream_t stream);
  // places from what the caller's experts made of given rows to own rows, summed over shards.
  moecclResult_t combine(Places& places, moecclStream_t stream);
  // The same where all ranks of the ESP group have the sums over shards already.
  moecclResult_t splitAndCombine(Places& places, moecclStream_t stream);

 private:
  // Rows to or from each rank of a group, one after another.
  class Parts {
   public:
    explicit Parts(int ranks) : counts_(ranks), begins_(ranks) {}
    void set(int rank, std::int64_t rows, std::int64_t begin, std::int64_t embedding);
    const std::size_t* counts() const { return counts_.data(); }
    const std::size_t* begins() const { return begins_.data(); }

   private:
    std::vector<std::size_t> counts_, begins_;  // in elements
  };

  std::size_t indexOf(int esp, int ep, std::int64_t expert) const {
    return static_cast<std::size_t>((esp * groups_.ep.ranks + ep) * shape_.localExperts + expert);
  }
  std::int64_t arrived(int esp) const;  // rows that came to that shard
  void setOwn(const std::int64_t* begins);
  void setParts();
  // places from [N_ESP][N_EP][E_local] runs, or from given ones.
  void regroup(Places& places, bool toGiven, moecclStream_t stream);
  void copyRun(Places& places, std::int64_t to, std::int64_t from, std::int64_t rows,
               moecclStream_t stream);
  moecclResult_t giveBack(Places& places, moecclStream_t stream);
  moecclResult_t exchange(const char* phase, const Group& group, Places& places, const Parts& sends,
                          const Parts& receives, moecclStream_t stream);

  const Groups& groups_;
  Compute& compute_;
  const LayerShape shape_;
  Phases& phases_;
  std::vector<std::int64_t> ownRuns_;  // [E]
  std::vector<std::int64_t> runs_;     // [N_ESP][N_EP][E_local]
  std::vector<std::int64_t> begins_;   // of runs, in what is given
  std::vector<std::int64_t> expertBegins_;
  std::int64_t ownRows_ = 0, groupRows_ = 0;
  Parts ownParts_, arrivedParts_;                  // by EP rank
  Parts groupParts_, groupArrivedParts_;           // the same, of all ranks of the ESP group
  Parts copiedParts_, givenParts_, summandParts_;  // by ESP rank
  std::vector<std::int64_t> groupRuns_;            // [N_EP][N_ESP][E_local]
  Memory sentCounts_, counts_;                     // [N_ESP][E]
};

}  // namespace moeccl
