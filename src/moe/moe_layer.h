// The layer behind moecclMoeLayer_t.
#pragma once

#include <memory>

#include "moeccl/moe.h"
#include "src/moe/layer_work.h"
#include "src/schedule/executor.h"

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
  bool hasWeights() const { return work_.weights().gate.gate != nullptr; }

  // As moecclMoeForward. Throws Error, as do the others.
  void forward(const void* input, void* output, moecclStream_t stream);
  void setGradients(const LayerGradients& gradients) { work_.setGradients(gradients); }
  // As moecclMoeBackward, after a forward of a layer for training.
  void backward(const void* outputGradient, double auxiliaryLossScale, void* inputGradient,
                moecclStream_t stream);
  // As moecclMoeLayerSetStep, SetFirstBatch and moecclMoeUpdateBias.
  void setStep(std::int64_t step) { step_ = step; }
  void setFirstBatch(std::int64_t first) { work_.setFirstBatch(first); }
  void updateBias(double* bias, double speed);

  // Whether there has been a forward, and the last one did not fail.
  bool hasStats() const { return hasStats_; }
  // Of that; waits for it.
  const BatchStats& stats();

 private:
  // Before a pass: what its work goes on.
  moecclStream_t begin(moecclStream_t stream);
  // A pass: start(stream) starts it, end(stream) is what follows it.
  template <typename Start, typename End>
  void run(moecclStream_t stream, Start start, End end);
  void runExperts(moecclStream_t stream);
  // After a pass that failed or threw.
  void abandon(moecclStream_t stream);

  Groups groups_;
  LayerShape shape_;
  std::unique_ptr<Compute> compute_;
  const schedules::Schedule& forward_;
  const schedules::Schedule* backward_;  // of a layer for training
  schedules::Sizes sizes_;
  schedules::Executor executor_;
  LayerWork work_;
  schedules::PassRun pass_;
  BatchStats stats_;
  ChoiceCounts choices_;          // since the last updateBias
  std::unique_ptr<Mark> passed_;  // behind the last pass
  bool hasStats_ = false;
  std::int64_t step_ = 0;
};

}  // namespace moeccl
