// The layer behind moecclMoeLayer_t.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "moeccl/moe.h"
#include "src/moe/layer_work.h"
#include "src/moe/own_pass.h"
#include "src/schedule/executor.h"

namespace moeccl {

// On GPUs the communicator's device has to be current in every call, this and the destructor too.
class MoeLayer {
 public:
  // Local. `requested`: as requestedSchedule says, the same on all ranks like the config. `onGpu`:
  // whether the grid's communicator is. Throws Error.
  MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, moecclSchedule_t requested,
           bool onGpu);
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

  // As moecclMoeBegin and what follows it. The pass is the layer's, and the caller's until close.
  OwnPass& beginOwn(const void* input, const OwnRouting& routing, moecclStream_t stream);
  void end(OwnPass& pass, void* output, moecclStream_t stream);
  void endBackward(OwnPass& pass, const void* outputGradient, moecclStream_t stream);
  void beginBackward(OwnPass& pass, void* inputGradient, void* weightGradients,
                     moecclStream_t stream);
  void close(OwnPass& pass) { pass.stage = OwnPass::Stage::free; }

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
  void abandon(schedules::PassRun& pass, moecclStream_t stream);
  // start(stream), then pass on to its experts, or to its end; whatever it throws says how far it
  // has come.
  template <typename Start>
  void guard(schedules::PassRun& pass, moecclStream_t stream, Start start);
  // One half of a pass around the caller's experts.
  template <typename Start>
  void half(OwnPass& pass, OwnPass::Stage from, OwnPass::Stage to, moecclStream_t stream,
            Start start);

  Groups groups_;
  LayerShape shape_;
  std::unique_ptr<Compute> compute_;
  const schedules::Schedule& forward_;
  const schedules::Schedule* backward_;  // of a layer for training
  schedules::Sizes sizes_;
  schedules::Executor executor_;
  LayerWork work_;
  schedules::PassRun pass_;
  std::optional<OwnSchedules> own_;  // once a pass needs them
  std::vector<std::unique_ptr<OwnPass>> passes_;
  BatchStats stats_;
  ChoiceCounts choices_;          // since the last updateBias
  std::unique_ptr<Mark> passed_;  // behind the last pass
  bool hasStats_ = false;
  std::int64_t step_ = 0;
};

}  // namespace moeccl
