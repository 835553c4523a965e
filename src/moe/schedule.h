// What the schedules share: a layer's weights and buffers, its exchanges, its experts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/moe/groups.h"
#include "src/moe/layer_shape.h"
#include "src/moe/places.h"
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
  Schedule(const LayerShape& shape, const Groups& groups);

  // What is random about the batch of a rank of the world; nothing is but in training.
  std::optional<gates::Draw> drawOf(std::int64_t step, int rank) const;

  // places = all-to-all of them, `count` floats per rank.
  moecclResult_t allToAll(const char* phase, const Group& group, Places& places,
                          std::int64_t count);
  // places = their sum over the group, `count` floats.
  moecclResult_t allReduce(const char* phase, const Group& group, Places& places,
                           std::int64_t count);
  // places = those of all ranks of the group, `count` floats of each.
  moecclResult_t allGather(const char* phase, const Group& group, Places& places,
                           std::int64_t count);
  // places = their sum over the group, of the caller's part of `count` floats.
  moecclResult_t reduceScatter(const char* phase, const Group& group, Places& places,
                               std::int64_t count);

  // moecclDispatch and its kin. With `slots` places per expert on each rank, a whole batch has
  // [E][N_MP][slots], a rank's part [E][slots], and experts have [localExperts][P][slots], each followed
  // by [embedding]. On a stream, places are not to be touched until that has been synchronised.
  //     dispatch       part -> experts        combine           experts -> part, summed over shards
  //     splitDispatch  batch -> experts       combineAllGather  experts -> batch, the same
  moecclResult_t dispatch(Places& places, std::int64_t slots, moecclStream_t stream = nullptr);
  moecclResult_t splitDispatch(Places& places, std::int64_t slots);
  moecclResult_t combine(Places& places, std::int64_t slots, moecclStream_t stream = nullptr);
  moecclResult_t combineAllGather(Places& places, std::int64_t slots);

  // In place: the caller's part lies at buffer + group.rank * count.
  moecclResult_t allGatherInPlace(const char* phase, const Group& group, float* buffer,
                                  std::int64_t count, moecclStream_t stream = nullptr);
  // `result`; notes the phase when it is a failure.
  moecclResult_t noted(const char* phase, moecclResult_t result);

  // places [outer][inner][blockFloats] -> [inner][outer][blockFloats].
  void transpose(Places& places, std::int64_t outer, std::int64_t inner, std::int64_t blockFloats);

  // places [localExperts][rowsPerExpert][embedding] through the caller's shards of its experts.
  void runExperts(const LayerWeights& weights, Places& places, std::int64_t rowsPerExpert);
  // tokens [count][embedding] through the caller's shard of its `expert`, from 0. They may be results
  // too.
  void runExpert(const LayerWeights& weights, std::int64_t expert, std::int64_t count,
                 const float* tokens, float* results);
  // The same backward: places from gradients of what runExperts returned to those of what it was given;
  // adds to the gradients of the weights.
  void runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                          Places& places, std::int64_t rowsPerExpert);
  // tokens [count][embedding]: what runExpert was given; rowGradients as above.
  void runExpertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                         std::int64_t expert, std::int64_t count, const float* tokens,
                         float* rowGradients);
  // Between two experts: lets what is under way on streams advance.
  virtual void progress() {}

  const LayerShape shape_;
  const Groups groups_;

 private:
  using Exchange = decltype(moecclDispatch);
  moecclResult_t exchange(const char* phase, Exchange& function, Places& places, std::int64_t slots,
                          moecclStream_t stream);
  ExpertWeights expertWeights(const LayerWeights& weights, std::int64_t expert) const;

  std::vector<float> workspace_;  // of experts
  const char* failedPhase_ = "";
};

std::unique_ptr<Schedule> baselineSchedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> s1Schedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> s2Schedule(const LayerShape& shape, const Groups& groups);
std::unique_ptr<Schedule> ppMoeSchedule(const LayerShape& shape, const Groups& groups);

}  // namespace moeccl
