#include "src/moe/parts.h"

#include <algorithm>

namespace moeccl {
namespace {

std::vector<std::int64_t> beginsOf(std::initializer_list<std::int64_t> sizes) {
  std::vector<std::int64_t> begins = {0};
  for (std::int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

}  // namespace

PartGather::PartGather(const Groups& groups, Compute& compute, Phases& phases, const char* phase,
                       std::int64_t chunk, bool inBatch)
    : groups_(groups),
      compute_(compute),
      shape_(compute.shape()),
      phases_(phases),
      phase_(phase),
      chunk_(chunk) {
  const bool fits = shape_.chunks == 1 && shape_.paddedTokens() == shape_.tokens;
  if (inBatch && (groups.mp.ranks == 1 || fits)) return;
  const std::int64_t count =
      elementCount({groups.mp.ranks, shape_.chunkTokens(), shape_.embedding});
  gathered_ = compute.elements(count);
  compute.zero(gathered_.get(), count, nullptr);  // padding is sent too
}

void* PartGather::own(void* batch) const {
  if (gathered_) return compute_.at(gathered_.get(), groups_.mp.rank * partElements());
  return compute_.at(batch, shape_.firstToken(groups_.mp.rank, chunk_) * shape_.embedding);
}

moecclResult_t PartGather::gather(void* batch, moecclStream_t stream) {
  if (groups_.mp.ranks == 1) return moecclSuccess;
  void* const all = gathered_ ? gathered_.get() : batch;
  return phases_.noted(phase_, moecclAllGather(compute_.at(all, groups_.mp.rank * partElements()),
                                               all, static_cast<std::size_t>(partElements()),
                                               shape_.datatype, groups_.mp.comm, stream));
}

template <typename Place>
void PartGather::forEachPart(void* batch, Place place) const {
  for (int part = 0; part < groups_.mp.ranks; ++part) {
    const std::int64_t first = shape_.firstToken(part, chunk_) * shape_.embedding;
    place(compute_.at(batch, first), compute_.at(gathered_.get(), part * partElements()),
          std::min(shape_.tokens * shape_.embedding - first, partElements()));
  }
}

void PartGather::spread(void* batch, moecclStream_t stream) const {
  if (!gathered_) return;
  forEachPart(batch, [&](void* to, const void* from, std::int64_t count) {
    compute_.copy(to, from, count, stream);
  });
}

void PartGather::add(void* batch, moecclStream_t stream) const {
  forEachPart(batch, [&](void* to, const void* from, std::int64_t count) {
    compute_.add(to, from, count, stream);
  });
}

PartGradients::PartGradients(const Groups& groups, Compute& compute, Phases& phases,
                             const char* phase, std::initializer_list<std::int64_t> sizes)
    : groups_(groups),
      compute_(compute),
      phases_(phases),
      phase_(phase),
      begins_(beginsOf(sizes)),
      all_(compute.elements(begins_.back())) {}

void PartGradients::clear(moecclStream_t stream) {
  compute_.zero(all_.get(), begins_.back(), stream);
}

moecclResult_t PartGradients::reduce(moecclStream_t stream) {
  if (groups_.mp.ranks == 1) return moecclSuccess;
  return phases_.noted(
      phase_, moecclAllReduce(all_.get(), all_.get(), static_cast<std::size_t>(begins_.back()),
                              compute_.datatype(), moecclSum, groups_.mp.comm, stream));
}

void PartGradients::addTo(void* sums, int which, moecclStream_t stream) const {
  if (sums != nullptr) compute_.add(sums, of(which), begins_[which + 1] - begins_[which], stream);
}

PartGateGradient::PartGateGradient(const Groups& groups, Compute& compute, Phases& phases)
    : noisy_(compute.shape().gate.kind == gates::Kind::noisy),
      all_(groups, compute, phases, "MP-AllReduce of the gate's gradient",
           {elementCount({compute.shape().embedding, compute.shape().experts}),
            elementCount({noisy_ ? 1 : 0, compute.shape().embedding, compute.shape().experts})}) {}

GateGradients PartGateGradient::partial() const {
  return {all_.of(0), noisy_ ? all_.of(1) : nullptr};
}

moecclResult_t PartGateGradient::addTo(const GateGradients& sums, moecclStream_t stream) {
  const moecclResult_t result = all_.reduce(stream);
  if (result != moecclSuccess) return result;
  all_.addTo(sums.gate, 0, stream);
  all_.addTo(sums.noise, 1, stream);
  return moecclSuccess;
}

moecclResult_t gatherSums(const Groups& groups, Phases& phases, BatchSums& sums,
                          moecclStream_t stream) {
  if (groups.mp.ranks == 1) return moecclSuccess;
  return phases.noted("MP-AllGather of the gate's sums",
                      moecclAllGather(sums.row(groups.mp.rank), sums.rows(),
                                      static_cast<std::size_t>(sums.rowSize()), moecclFloat64,
                                      groups.mp.comm, stream));
}

}  // namespace moeccl
