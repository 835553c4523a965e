// What the schedules share: a layer's weights and buffers, its exchanges, its experts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/moe/groups.h"
#include "src/moe/layer_shape.h"
#include "src/moe/router.h"

namespace moeccl {

// As in moecclMoeWeights_t.
struct LayerWeights {
  GateWeights gate{};
  const float* w1 = nullptr;
  const float* b1 = nullptr;
  const float* w2 = nullptr;
  const float* b2 = nullptr;
};

// As in moecclMoeGradients_t.
struct LayerGradients {
  GateGradients gate;
  float* w1 = nullptr;
  float* b1 = nullptr;
  float* w2 = nullptr;
  float* b2 = nullptr;
};

// An order of collectives and computation. Made once per layer, with all the memory it needs.
class Schedule {
 public:
  virtual ~Schedule() = default;

  // input and output [tokens][embedding]; they may be the same. step: of the training, for what is
  // random. Fills `sums`. All collectives are complete on return. On failure failedPhase() says where,
  // and moecclGetLastError(NULL) why.
  virtual moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                                 float* output, BatchSums& sums) = 0;

  // The same backward, of the last forward, when the layer is for training. sumGradients: by
  // the gate's sums, as of BatchStats::lossBackward.
  virtual moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                                  const double* sumGradients, const LayerGradients& gradients,
                                  float* inputGradient) = 0;

  const char* failedPhase() const { return failedPhase_; }

 protected:
  // `rows`: floats in the largest matrix of places.
  Schedule(const LayerShape& shape, const Groups& groups, std::int64_t rows);

  // What is random about the batch of a rank of the world; nothing is but in training.
  std::optional<gates::Draw> drawOf(std::int64_t step, int rank) const;

  // For backward: makes runExperts keep what it is given, and room for keepResults.
  void keepRows(std::int64_t results);
  // Keeps the first of rows(), what experts returned, if keepRows has been called.
  void keepResults();
  const float* keptInputs() const { return inputs_.get(); }
  const float* keptResults() const { return results_.data(); }

  // The matrix of places at hand, and room for what comes of it.
  float* rows() { return rows_.get(); }
  float* spare() { return spare_.get(); }
  void swap() { rows_.swap(spare_); }

  // rows() = all-to-all of rows(), `count` floats per rank.
  moecclResult_t allToAllRows(const char* phase, const Group& group, std::int64_t count);
  // rows() = their sum over the group, `count` floats.
  moecclResult_t allReduceRows(const char* phase, const Group& group, std::int64_t count);
  // moecclDispatch and its kin: rows() = what comes of them. With `slots` places per expert on each
  // rank, a whole batch has [E][N_MP][slots], a rank's part [E][slots], and experts have
  // [localExperts][P][slots], each followed by [embedding].
  //     dispatch       part -> experts        combine           experts -> part, summed over shards
  //     splitDispatch  batch -> experts       combineAllGather  experts -> batch, the same
  moecclResult_t dispatchRows(std::int64_t slots);
  moecclResult_t splitDispatchRows(std::int64_t slots);
  moecclResult_t combineRows(std::int64_t slots);
  moecclResult_t combineAllGatherRows(std::int64_t slots);
  // rows() = those of all ranks of the group, `count` floats of each.
  moecclResult_t allGatherRows(const char* phase, const Group& group, std::int64_t count);
  // rows() = their sum over the group, of the caller's part of `count` floats.
  moecclResult_t reduceScatterRows(const char* phase, const Group& group, std::int64_t count);
  // In place: the caller's part lies at buffer + group.rank * count.
  moecclResult_t allGatherInPlace(const char* phase, const Group& group, float* buffer,
                                  std::int64_t count);
  // `result`; notes the phase when it is a failure.
  moecclResult_t noted(const char* phase, moecclResult_t result);

  // rows() [outer][inner][blockFloats] -> [inner][outer][blockFloats].
  void transposeRows(std::int64_t outer, std::int64_t inner, std::int64_t blockFloats);
  // rows() [localExperts][rowsPerExpert][embedding] through the caller's shards of its experts.
  void runExperts(const LayerWeights& weights, std::int64_t rowsPerExpert);
  // tokens [count][embedding] through the caller's shard of its `expert`, from 0. They may be results
  // too.
  void runExpert(const LayerWeights& weights, std::int64_t expert, std::int64_t count,
                 const float* tokens, float* results);
  // The same backward: rows() from gradients of what runExperts returned to those of what it was given;
  // adds to the gradients of the weights.
  void runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                          std::int64_t rowsPerExpert);
  // tokens [count][embedding]: what runExpert was given; rowGradients as above.
  void runExpertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                         std::int64_t expert, std::int64_t count, const float* tokens,
                         float* rowGradients);

  const LayerShape shape_;
  const Groups groups_;

 private:
  using Exchange = decltype(moecclDispatch);
  moecclResult_t exchangeRows(const char* phase, Exchange& exchange, std::int64_t slots);

  ExpertWeights expertWeights(const LayerWeights& weights, std::int64_t expert) const;

  std::int64_t size_;                               // of each of these three, in floats
  std::unique_ptr<float[]> rows_, spare_, inputs_;  // the last only for backward
  std::vector<float> results_;
  std::vector<float> hidden_;
  const char* failedPhase_ = "";
};

std::unique_ptr<Schedule> baselineSchedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> s1Schedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> s2Schedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> ppMoeSchedule(const LayerShape& shape, const Groups& groups);

}  // namespace moeccl
