// The layer behind moecclMoeLayer_t.
#pragma once

#include <memory>
#include <string>

#include "moeccl/moe.h"
#include "src/moe/schedule.h"

namespace moeccl {

// On GPUs the communicator's device has to be current in every call, this and the destructor too.
class MoeLayer {
 public:
  // Local. `requested`: as requestedSchedule says, the same on all ranks like the config. `memory`: that of
  // the grid's communicator. Throws Error.
  MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, moecclSchedule_t requested,
           moecclMemory_t memory);
  // Waits for what is under way.
  ~MoeLayer();
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;

  const LayerShape& shape() const { return shape_; }
  const Groups& groups() const { return groups_; }

  void setWeights(const LayerWeights& weights);
  bool hasWeights() const { return weights_.gate.gate != nullptr; }

  // As moecclMoeForward. On failure failure() says where and why; where computation fails it throws Error.
  moecclResult_t forward(const void* input, void* output, moecclStream_t stream);
  void setGradients(const LayerGradients& gradients) { gradients_ = gradients; }
  // As moecclMoeBackward, after a forward of a layer for training; else as forward.
  moecclResult_t backward(const void* outputGradient, double auxiliaryLossScale,
                          void* inputGradient, moecclStream_t stream);
  // As moecclMoeLayerSetStep, SetFirstBatch and moecclMoeUpdateBias.
  void setStep(std::int64_t step) { step_ = step; }
  void setFirstBatch(std::int64_t first) { schedule_->setFirstBatch(first); }
  moecclResult_t updateBias(double* bias, double speed);
  const std::string& failure() const { return failure_; }

  // Whether there has been a forward, and the last one did not fail.
  bool hasStats() const { return hasStats_; }
  // Of that; waits for it.
  const BatchStats& stats();

 private:
  // Before a pass: on return `stream` is what its work goes on.
  moecclResult_t begin(moecclStream_t& stream);
  // Calls pass() between begin and the mark of its end.
  template <typename Pass>
  moecclResult_t run(moecclStream_t stream, Pass pass);
  void keepFailure(const char* phase);
  // After a pass that failed or threw.
  void abandon(moecclStream_t stream);

  Groups groups_;
  LayerShape shape_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Schedule> schedule_;
  LayerWeights weights_;
  LayerGradients gradients_;
  BatchSums sums_;
  BatchStats stats_;
  ChoiceCounts choices_;          // since the last updateBias
  std::unique_ptr<Mark> passed_;  // behind the last pass
  bool hasStats_ = false;
  std::int64_t step_ = 0;
  std::string failure_;
};

}  // namespace moeccl
