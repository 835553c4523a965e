#include "src/moe/schedule.h"

#include <algorithm>
#include <cstddef>

#include "kernels/copy.h"

namespace moeccl {
namespace {

std::byte* bytes(float* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

Schedule::Schedule(const LayerShape& shape, const Groups& groups, std::int64_t rows)
    : shape_(shape),
      groups_(groups),
      size_(rows),
      rows_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows))),
      spare_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows))),
      hidden_(static_cast<std::size_t>(shape.training ? expertBackwardWorkspace(shape.localHidden)
                                                      : expertWorkspace(shape.localHidden))) {}

std::optional<gates::Draw> Schedule::drawOf(std::int64_t step, int rank) const {
  if (!shape_.training) return std::nullopt;
  return gates::Draw{static_cast<std::uint64_t>(shape_.seed), static_cast<std::uint64_t>(step),
                     static_cast<std::uint64_t>(rank / shape_.grid.nMp)};
}

void Schedule::keepRows(std::int64_t results) {
  inputs_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size_));
  results_.resize(static_cast<std::size_t>(results));
}

void Schedule::keepResults() { std::copy_n(rows(), results_.size(), results_.data()); }

moecclResult_t Schedule::noted(const char* phase, moecclResult_t result) {
  if (result != moecclSuccess) failedPhase_ = phase;
  return result;
}

moecclResult_t Schedule::allToAllRows(const char* phase, const Group& group, std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result = moecclAllToAll(rows(), spare(), static_cast<std::size_t>(count),
                                               moecclFloat32, group.comm, nullptr);
  swap();
  return noted(phase, result);
}

moecclResult_t Schedule::allReduceRows(const char* phase, const Group& group, std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  return noted(phase, moecclAllReduce(rows(), rows(), static_cast<std::size_t>(count),
                                      moecclFloat32, moecclSum, group.comm, nullptr));
}

moecclResult_t Schedule::exchangeRows(const char* phase, Exchange& exchange, std::int64_t slots) {
  const moecclResult_t result =
      exchange(rows(), spare(), static_cast<std::size_t>(slots * shape_.embedding),
               static_cast<int>(shape_.localExperts), moecclFloat32, groups_.grid, nullptr);
  swap();
  return noted(phase, result);
}

moecclResult_t Schedule::dispatchRows(std::int64_t slots) {
  return exchangeRows("dispatch", moecclDispatch, slots);
}

moecclResult_t Schedule::splitDispatchRows(std::int64_t slots) {
  return exchangeRows("MP-Split and dispatch", moecclSplitDispatch, slots);
}

moecclResult_t Schedule::combineRows(std::int64_t slots) {
  return exchangeRows("combine", moecclCombine, slots);
}

moecclResult_t Schedule::combineAllGatherRows(std::int64_t slots) {
  return exchangeRows("combine and MP-AllGather", moecclCombineAllGather, slots);
}

moecclResult_t Schedule::allGatherRows(const char* phase, const Group& group, std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result = moecclAllGather(rows(), spare(), static_cast<std::size_t>(count),
                                                moecclFloat32, group.comm, nullptr);
  swap();
  return noted(phase, result);
}

moecclResult_t Schedule::reduceScatterRows(const char* phase, const Group& group,
                                           std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclReduceScatter(rows(), spare(), static_cast<std::size_t>(count), moecclFloat32,
                          moecclSum, group.comm, nullptr);
  swap();
  return noted(phase, result);
}

moecclResult_t Schedule::allGatherInPlace(const char* phase, const Group& group, float* buffer,
                                          std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  return noted(phase,
               moecclAllGather(buffer + group.rank * count, buffer, static_cast<std::size_t>(count),
                               moecclFloat32, group.comm, nullptr));
}

void Schedule::transposeRows(std::int64_t outer, std::int64_t inner, std::int64_t blockFloats) {
  if (outer == 1 || inner == 1) return;
  const auto block = static_cast<std::ptrdiff_t>(blockFloats * sizeof(float));
  for (std::int64_t i = 0; i < outer; ++i)
    copyBlocks(bytes(spare()) + i * block, outer * block, bytes(rows()) + i * inner * block, block,
               static_cast<std::size_t>(block), inner);
  swap();
}

ExpertWeights Schedule::expertWeights(const LayerWeights& weights, std::int64_t expert) const {
  const std::int64_t embedding = shape_.embedding, hidden = shape_.localHidden;
  ExpertWeights own{};
  own.w1 = weights.w1 + expert * embedding * hidden;
  own.w2 = weights.w2 + expert * hidden * embedding;
  if (weights.b1 != nullptr) own.b1 = weights.b1 + expert * hidden;
  // One of the summands brings the second bias.
  if (weights.b2 != nullptr && groups_.esp.rank == 0) own.b2 = weights.b2 + expert * embedding;
  return own;
}

void Schedule::runExperts(const LayerWeights& weights, std::int64_t rowsPerExpert) {
  float* const results = inputs_ ? inputs_.get() : rows();
  for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
    const std::int64_t begin = expert * rowsPerExpert * shape_.embedding;
    runExpert(weights, expert, rowsPerExpert, rows() + begin, results + begin);
  }
  if (inputs_) inputs_.swap(rows_);
}

void Schedule::runExpert(const LayerWeights& weights, std::int64_t expert, std::int64_t count,
                         const float* tokens, float* results) {
  expertForward(shape_.activation, expertWeights(weights, expert), shape_.embedding,
                shape_.localHidden, tokens, count, hidden_, results);
}

void Schedule::runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                                  std::int64_t rowsPerExpert) {
  for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
    const std::int64_t begin = expert * rowsPerExpert * shape_.embedding;
    runExpertBackward(weights, gradients, expert, rowsPerExpert, keptInputs() + begin,
                      rows() + begin);
  }
}

void Schedule::runExpertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                                 std::int64_t expert, std::int64_t count, const float* tokens,
                                 float* rowGradients) {
  const std::int64_t embedding = shape_.embedding, hidden = shape_.localHidden;
  const auto own = [expert](float* all, std::int64_t size) {
    return all == nullptr ? nullptr : all + expert * size;
  };
  expertBackward(shape_.activation, expertWeights(weights, expert), embedding, hidden, tokens,
                 rowGradients, count, hidden_,
                 {own(gradients.w1, embedding * hidden), own(gradients.b1, hidden),
                  own(gradients.w2, hidden * embedding), own(gradients.b2, embedding)},
                 rowGradients);
}

}  // namespace moeccl
