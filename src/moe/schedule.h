// What the schedules share: their exchanges and experts. Memory, elements and streams as in compute.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/moe/compute.h"
#include "src/moe/groups.h"
#include "src/moe/phases.h"
#include "src/moe/places.h"
#include "src/moe/router.h"

namespace moeccl {

// An order of collectives and computation. Made once per layer, with all the memory it needs.
class Schedule : public Phases {
 public:
  virtual ~Schedule() = default;

  // input and output [tokens][embedding]; they may be the same. step: of the training, for what is
  // random. Fills `sums`. All is complete on return, or queued on the stream where computation is.
  // On failure failedPhase() says where, and moecclGetLastError(NULL) why.
  virtual moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                                 void* output, BatchSums& sums, moecclStream_t stream) = 0;

  // The same backward, of the last forward, when the layer is for training. sumGradients: by
  // the gate's sums, as of BatchStats::lossBackward.
  virtual moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                                  const double* sumGradients, const LayerGradients& gradients,
                                  void* inputGradient, moecclStream_t stream) = 0;

  // Of the MP groups' batches, from the next forward on.
  virtual void setFirstBatch(std::int64_t first) { firstBatch_ = first; }

  // After a pass that failed or threw: what is under way beside `stream` comes before what that is asked for next.
  virtual void abandon(moecclStream_t) {}

 protected:
  // `compute` must outlive this.
  Schedule(const Groups& groups, Compute& compute);

  // What is random about the batch of a rank of the world; nothing is but in training.
  std::optional<gates::Draw> drawOf(std::int64_t step, int rank) const;
  // The rank of the world at that place of the EP and ESP groups.
  int worldRank(int ep, int esp) const;

  // places = all-to-all of them, `count` elements per rank.
  moecclResult_t allToAll(const char* phase, const Group& group, Places& places, std::int64_t count,
                          moecclStream_t stream);
  // places = those of all ranks of the group, `count` elements of each.
  moecclResult_t allGather(const char* phase, const Group& group, Places& places,
                           std::int64_t count, moecclStream_t stream);
  // places = their sum over the group, of the caller's part of `count` elements.
  moecclResult_t reduceScatter(const char* phase, const Group& group, Places& places,
                               std::int64_t count, moecclStream_t stream);

  // moecclDispatch and its kin. With `slots` places per expert on each rank, a whole batch has
  // [E][N_MP][slots], a rank's part [E][slots], and experts have [localExperts][P][slots], each followed
  // by [embedding].
  //     dispatch       part -> experts        combine           experts -> part, summed over shards
  //     splitDispatch  batch -> experts       combineAllGather  experts -> batch, the same
  moecclResult_t dispatch(Places& places, std::int64_t slots, moecclStream_t stream);
  moecclResult_t splitDispatch(Places& places, std::int64_t slots, moecclStream_t stream);
  moecclResult_t combine(Places& places, std::int64_t slots, moecclStream_t stream);
  moecclResult_t combineAllGather(Places& places, std::int64_t slots, moecclStream_t stream);

  // result = the sum of `elements` over the group, `count` of them; may be the same.
  moecclResult_t allReduce(const char* phase, const Group& group, const void* elements,
                           void* result, std::int64_t count, moecclStream_t stream);

  // places [outer][inner][block] -> [inner][outer][block].
  void transpose(Places& places, std::int64_t outer, std::int64_t inner, std::int64_t block,
                 moecclStream_t stream);

  // places [localExperts][rowsPerExpert][embedding] through the caller's shards of its experts.
  void runExperts(const LayerWeights& weights, Places& places, std::int64_t rowsPerExpert,
                  moecclStream_t stream);
  // The same backward: places from gradients of what runExperts returned to those of what it was given;
  // adds to the gradients of the weights.
  void runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                          Places& places, std::int64_t rowsPerExpert, moecclStream_t stream);
  // The same of as many rows as there are, each expert's from begins [localExperts + 1] on.
  void runExperts(const LayerWeights& weights, Places& places, const std::int64_t* begins,
                  moecclStream_t stream);
  void runExpertsBackward(const LayerWeights& weights, const LayerGradients& gradients,
                          Places& places, const std::int64_t* begins, moecclStream_t stream);
  // Between experts: lets what is under way on streams advance.
  virtual void progress() {}

  Compute& compute_;
  const LayerShape shape_;
  const Groups groups_;

 private:
  using Exchange = decltype(moecclDispatch);
  moecclResult_t exchange(const char* phase, Exchange& function, Places& places, std::int64_t slots,
                          moecclStream_t stream);
  const std::int64_t* evenBegins(std::int64_t rowsPerExpert);
  // Calls function(rows) for the caller's experts, as many at a time as compute_ likes.
  template <typename Function>
  void eachExperts(const std::int64_t* begins, Function function);

  std::vector<std::int64_t> begins_;  // [localExperts + 1]
  std::int64_t firstBatch_ = 0;
};

std::unique_ptr<Schedule> baselineSchedule(const Groups& groups, Compute& compute);
std::unique_ptr<Schedule> s1Schedule(const Groups& groups, Compute& compute);
// For dropless layers, like ppMoeSchedule.
std::unique_ptr<Schedule> droplessBaselineSchedule(const Groups& groups, Compute& compute);
std::unique_ptr<Schedule> droplessS1Schedule(const Groups& groups, Compute& compute);
std::unique_ptr<Schedule> s2Schedule(const Groups& groups, Compute& compute);
std::unique_ptr<Schedule> ppMoeSchedule(const Groups& groups, Compute& compute);
// `schedule`, which knows of none, with the residual branch beside it.
std::unique_ptr<Schedule> withResidual(std::unique_ptr<Schedule> schedule, const Groups& groups,
                                       Compute& compute);

}  // namespace moeccl
