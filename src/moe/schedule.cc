#include "src/moe/schedule.h"

#include <algorithm>

namespace moeccl {

Schedule::Schedule(const Groups& groups, Compute& compute)
    : compute_(compute),
      shape_(compute.shape()),
      groups_(groups),
      begins_(static_cast<std::size_t>(shape_.localExperts) + 1) {}

std::optional<gates::Draw> Schedule::drawOf(std::int64_t step, int rank) const {
  if (!shape_.training) return std::nullopt;
  return gates::Draw{static_cast<std::uint64_t>(shape_.seed), static_cast<std::uint64_t>(step),
                     static_cast<std::uint64_t>(firstBatch_ + rank / shape_.grid.nMp)};
}

int Schedule::worldRank(int ep, int esp) const {
  const moecclGridShape_t& grid = shape_.grid;
  return grid.order == moecclOrderEspEp ? ep * grid.nEsp + esp : esp * grid.nEp + ep;
}

moecclResult_t Schedule::allToAll(const char* phase, const Group& group, Places& places,
                                  std::int64_t count, moecclStream_t stream) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclAllToAll(places.rows(), places.spare(), static_cast<std::size_t>(count),
                     shape_.datatype, group.comm, stream);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::allGather(const char* phase, const Group& group, Places& places,
                                   std::int64_t count, moecclStream_t stream) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclAllGather(places.rows(), places.spare(), static_cast<std::size_t>(count),
                      shape_.datatype, group.comm, stream);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::reduceScatter(const char* phase, const Group& group, Places& places,
                                       std::int64_t count, moecclStream_t stream) {
  if (group.ranks == 1) return moecclSuccess;
  const moecclResult_t result =
      moecclReduceScatter(places.rows(), places.spare(), static_cast<std::size_t>(count),
                          shape_.datatype, moecclSum, group.comm, stream);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::exchange(const char* phase, Exchange& function, Places& places,
                                  std::int64_t slots, moecclStream_t stream) {
  const moecclResult_t result =
      function(places.rows(), places.spare(), static_cast<std::size_t>(slots * shape_.embedding),
               static_cast<int>(shape_.localExperts), shape_.datatype, groups_.grid, stream);
  places.swap();
  return noted(phase, result);
}

moecclResult_t Schedule::dispatch(Places& places, std::int64_t slots, moecclStream_t stream) {
  return exchange("dispatch", moecclDispatch, places, slots, stream);
}

moecclResult_t Schedule::splitDispatch(Places& places, std::int64_t slots, moecclStream_t stream) {
  return exchange("MP-Split and dispatch", moecclSplitDispatch, places, slots, stream);
}

moecclResult_t Schedule::combine(Places& places, std::int64_t slots, moecclStream_t stream) {
  return exchange("combine", moecclCombine, places, slots, stream);
}

moecclResult_t Schedule::combineAllGather(Places& places, std::int64_t slots,
                                          moecclStream_t stream) {
  return exchange("combine and MP-AllGather", moecclCombineAllGather, places, slots, stream);
}

moecclResult_t Schedule::allReduce(const char* phase, const Group& group, const void* elements,
                                   void* result, std::int64_t count, moecclStream_t stream) {
  return noted(phase, moecclAllReduce(elements, result, static_cast<std::size_t>(count),
                                      shape_.datatype, moecclSum, group.comm, stream));
}

void Schedule::transpose(Places& places, std::int64_t outer, std::int64_t inner, std::int64_t block,
                         moecclStream_t stream) {
  if (outer == 1 || inner == 1) return;
  compute_.transpose(places.spare(), places.rows(), outer, inner, block, block, stream);
  places.swap();
}

void Schedule::runExperts(const LayerWeights& weights, Places& places, std::int64_t rowsPerExpert,
                          moecclStream_t stream) {
  runExperts(weights, places, evenBegins(rowsPerExpert), stream);
}

template <typename Function>
void Schedule::eachExperts(const std::int64_t* begins, Function function) {
  const std::int64_t most = compute_.expertsAtOnce();
  for (std::int64_t first = 0; first < shape_.localExperts; first += most) {
    const std::int64_t count = std::min(most, shape_.localExperts - first);
    function(ExpertRows{first, {begins + first, static_cast<std::size_t>(count) + 1}});
    progress();
  }
}

void Schedule::runExperts(const LayerWeights& weights, Places& places, const std::int64_t* begins,
                          moecclStream_t stream) {
  eachExperts(begins, [&](const ExpertRows& rows) {
    compute_.expertForward(weights, rows, places.rows(), places.expertResults(), stream);
  });
  places.swapResults();
}

void Schedule::runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                                  Places& places, std::int64_t rowsPerExpert,
                                  moecclStream_t stream) {
  runExpertsBackward(weights, gradients, places, evenBegins(rowsPerExpert), stream);
}

void Schedule::runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                                  Places& places, const std::int64_t* begins,
                                  moecclStream_t stream) {
  eachExperts(begins, [&](const ExpertRows& rows) {
    compute_.expertBackward(weights, gradients, rows, places.keptInputs(), places.rows(), stream);
  });
}

const std::int64_t* Schedule::evenBegins(std::int64_t rowsPerExpert) {
  for (std::size_t expert = 0; expert < begins_.size(); ++expert)
    begins_[expert] = static_cast<std::int64_t>(expert) * rowsPerExpert;
  return begins_.data();
}

}  // namespace moeccl
