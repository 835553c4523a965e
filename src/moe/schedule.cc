#include "src/moe/schedule.h"

#include <cstddef>

#include "kernels/copy.h"

namespace moeccl {
namespace {

std::byte* bytes(float* values) { return reinterpret_cast<std::byte*>(values); }

}  // namespace

Schedule::Schedule(const LayerShape& shape, const Groups& groups)
    : shape_(shape),
      groups_(groups),
      workspace_(static_cast<std::size_t>(shape.training
                                              ? expertBackwardWorkspace(shape.localHidden)
                                              : expertWorkspace(shape.localHidden))) {}

std::optional<gates::Draw> Schedule::drawOf(std::int64_t step, int rank) const {
  if (!shape_.training) return std::nullopt;
  return gates::Draw{static_cast<std::uint64_t>(shape_.seed), static_cast<std::uint64_t>(step),
                     static_cast<std::uint64_t>(rank / shape_.grid.nMp)};
}

moecclResult_t Schedule::noted(const char* phase, moecclResult_t result) {
  if (result != moecclSuccess) failedPhase_ = phase;
  return result;
}

moecclResult_t Schedule::allToAll(const char* phase, const Group& group, Places& places,
                                  std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclAllToAll(places.rows(), places.spare(), static_cast<std::size_t>(count), moecclFloat32,
                     group.comm, nullptr);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::allReduce(const char* phase, const Group& group, Places& places,
                                   std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  return noted(phase, moecclAllReduce(places.rows(), places.rows(), static_cast<std::size_t>(count),
                                      moecclFloat32, moecclSum, group.comm, nullptr));
}

moecclResult_t Schedule::allGather(const char* phase, const Group& group, Places& places,
                                   std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclAllGather(places.rows(), places.spare(), static_cast<std::size_t>(count), moecclFloat32,
                      group.comm, nullptr);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::reduceScatter(const char* phase, const Group& group, Places& places,
                                       std::int64_t count) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclReduceScatter(places.rows(), places.spare(), static_cast<std::size_t>(count),
                          moecclFloat32, moecclSum, group.comm, nullptr);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::exchange(const char* phase, Exchange& function, Places& places,
                                  std::int64_t slots, moecclStream_t stream) {
  const moecclResult_t result =
      function(places.rows(), places.spare(), static_cast<std::size_t>(slots * shape_.embedding),
               static_cast<int>(shape_.localExperts), moecclFloat32, groups_.grid, stream);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::dispatch(Places& places, std::int64_t slots, moecclStream_t stream) {
  return exchange("dispatch", moecclDispatch, places, slots, stream);
}

moecclResult_t Schedule::splitDispatch(Places& places, std::int64_t slots) {
  return exchange("MP-Split and dispatch", moecclSplitDispatch, places, slots, nullptr);
}

moecclResult_t Schedule::combine(Places& places, std::int64_t slots, moecclStream_t stream) {
  return exchange("combine", moecclCombine, places, slots, stream);
}

moecclResult_t Schedule::combineAllGather(Places& places, std::int64_t slots) {
  return exchange("combine and MP-AllGather", moecclCombineAllGather, places, slots, nullptr);
}

moecclResult_t Schedule::allGatherInPlace(const char* phase, const Group& group, float* buffer,
                                          std::int64_t count, moecclStream_t stream) {
  if (group.ranks == 1) return moecclSuccess;
  return noted(phase,
               moecclAllGather(buffer + group.rank * count, buffer, static_cast<std::size_t>(count),
                               moecclFloat32, group.comm, stream));
}

void Schedule::transpose(Places& places, std::int64_t outer, std::int64_t inner,
                         std::int64_t blockFloats) {
  if (outer == 1 || inner == 1) return;
  const auto block = static_cast<std::ptrdiff_t>(blockFloats * sizeof(float));
  for (std::int64_t i = 0; i < outer; ++i)
    copyBlocks(bytes(places.spare()) + i * block, outer * block,
               bytes(places.rows()) + i * inner * block, block, static_cast<std::size_t>(block),
               inner);
  places.swap();
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

void Schedule::runExperts(const LayerWeights& weights, Places& places, std::int64_t rowsPerExpert) {
  for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
    const std::int64_t begin = expert * rowsPerExpert * shape_.embedding;
    runExpert(weights, expert, rowsPerExpert, places.rows() + begin,
              places.expertResults() + begin);
    progress();
  }
  places.swapResults();
}

void Schedule::runExpert(const LayerWeights& weights, std::int64_t expert, std::int64_t count,
                         const float* tokens, float* results) {
  expertForward(shape_.activation, expertWeights(weights, expert), shape_.embedding,
                shape_.localHidden, tokens, count, workspace_, results);
}

void Schedule::runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                                  Places& places, std::int64_t rowsPerExpert) {
  for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
    const std::int64_t begin = expert * rowsPerExpert * shape_.embedding;
    runExpertBackward(weights, gradients, expert, rowsPerExpert, places.keptInputs() + begin,
                      places.rows() + begin);
    progress();
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
                 rowGradients, count, workspace_,
                 {own(gradients.w1, embedding * hidden), own(gradients.b1, hidden),
                  own(gradients.w2, hidden * embedding), own(gradients.b2, embedding)},
                 rowGradients);
}

}  // namespace moeccl
