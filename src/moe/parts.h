// What follows from each rank of an MP group computing its own part of the tokens: parts must be gathered,
// gradients of weights that all of the group hold must be added. Memory, elements and streams as in
// compute.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "src/moe/balance.h"
#include "src/moe/compute.h"
#include "src/moe/groups.h"
#include "src/moe/phases.h"

namespace moeccl {

// The MP-AllGather of a chunk of every part. What it is made with must outlive it.
class PartGather {
 public:
  // inBatch: parts are written into and gathered in the batch itself, where it has room for that as it comes.
  PartGather(const Groups& groups, Compute& compute, Phases& phases, const char* phase,
             std::int64_t chunk, bool inBatch);

  // Where the caller's part of `batch` [tokens][embedding] is to be written.
  void* own(void* batch) const;
  moecclResult_t gather(void* batch, moecclStream_t stream);
  // To where they belong in the batch, without padding: what has been gathered, once it is there.
  void spread(void* batch, moecclStream_t stream) const;
  // The same, added to what is there; not after inBatch.
  void add(void* batch, moecclStream_t stream) const;

 private:
  template <typename Place>
  void forEachPart(void* batch, Place place) const;
  std::int64_t partElements() const { return shape_.chunkTokens() * shape_.embedding; }

  const Groups& groups_;
  Compute& compute_;
  const LayerShape shape_;
  Phases& phases_;
  const char* phase_;
  std::int64_t chunk_;
  Memory gathered_;  // [N_MP][chunk tokens][embedding]
};

// Gradients of several weights by the caller's part, and their sums over the MP group. What it is made with
// must outlive it.
class PartGradients {
 public:
  // `sizes`: elements of each.
  PartGradients(const Groups& groups, Compute& compute, Phases& phases, const char* phase,
                std::initializer_list<std::int64_t> sizes);

  void clear(moecclStream_t stream);
  // Where the part adds those of weight `which`.
  void* of(int which) const { return compute_.at(all_.get(), begins_[which]); }
  // All ranks of the MP group take part, whichever of them want gradients.
  moecclResult_t reduce(moecclStream_t stream);
  // Once reduced; null: not wanted.
  void addTo(void* sums, int which, moecclStream_t stream) const;

 private:
  const Groups& groups_;
  Compute& compute_;
  Phases& phases_;
  const char* phase_;
  std::vector<std::int64_t> begins_;  // and where the last ends
  Memory all_;
};

// The gradients of the gate and of its noise.
class PartGateGradient {
 public:
  PartGateGradient(const Groups& groups, Compute& compute, Phases& phases);

  void clear(moecclStream_t stream) { all_.clear(stream); }
  GateGradients partial() const;
  moecclResult_t addTo(const GateGradients& sums, moecclStream_t stream);

 private:
  const bool noisy_;
  PartGradients all_;
};

// Gathers the rows of `sums` over the MP group, where each rank has set its part's: the loss is that of the
// whole batch.
moecclResult_t gatherSums(const Groups& groups, Phases& phases, BatchSums& sums,
                          moecclStream_t stream);

}  // namespace moeccl
