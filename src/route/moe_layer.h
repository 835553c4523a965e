// The layer behind moecclMoeLayer_t.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moeccl/moe.h"
#include "src/route/compute_makers.h"
#include "src/route/layer_work.h"
#include "src/route/learning.h"
#include "src/route/pass_run.h"

namespace moeccl {

// On GPUs the communicator's device has to be current in every call, this and the destructor too.
class MoeLayer {
 public:
  // What the layer may run under by itself, on all ranks alike.
  using Candidates = std::function<std::vector<LayerModel::Candidate>()>;
  // Local. `requested`: as requestedSchedule says, the same on all ranks like the config. `onGpu`:
  // whether the grid's communicator is; `make`: what the layer computes with there. Throws Error.
  MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, moecclSchedule_t requested,
           bool onGpu, MakeCompute make, const Candidates& candidates);
  // Waits for what is under way.
  ~MoeLayer();
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;

  // Passes may route tokens where mayRoute() says so. Then makeRoute() makes the route that they
  // use, before the first pass. It is collective over the grid.
  bool mayRoute() const;
  void makeRoute();

  // The shape of the next Forward, unless that is the one that changes it.
  const LayerShape& shape() const { return running_[now_]->work.shape(); }
  const Groups& groups() const { return groups_; }

  void setWeights(const LayerWeights& weights);
  bool hasWeights() const { return weights_.gate.gate != nullptr; }

  // As moecclMoeForward. Throws Error, as do the others.
  void forward(const void* input, void* output, moecclStream_t stream);
  void setGradients(const LayerGradients& gradients) { gradients_ = gradients; }
  // As moecclMoeBackward, after a forward of a layer for training.
  void backward(const void* outputGradient, double auxiliaryLossScale, void* inputGradient,
                moecclStream_t stream);
  // As moecclMoeLayerSetStep, SetFirstBatch and moecclMoeUpdateBias.
  void setStep(std::int64_t step) { step_ = step; }
  void setFirstBatch(std::int64_t first) { firstBatch_ = first; }
  void updateBias(double* bias, double speed);

  // Whether there has been a forward, and the last one did not fail.
  bool hasStats() const { return hasStats_; }
  // The statistics of the last forward; waits for it.
  const BatchStats& stats();

  // As moecclMoeLayerExplainChoice and SaveChoice.
  std::string explainChoice() const;
  std::string saveChoice() const;
  // Local: all of RestoreChoice that can fail. What it returns does the rest, on all ranks or none.
  std::function<void()> restoreChoice(std::string_view text);

 private:
  // All that the layer needs under one of the schedules that it may run under.
  struct Running {
    // timed: passes take the time of their phases.
    Running(const Groups& groups, std::shared_ptr<Compute> with, bool timed);

    const std::shared_ptr<Compute> compute;
    schedules::PassMemory memory;
    LayerWork work;
    schedules::PassRun pass;
  };

  // A pass: start(stream) starts it, end(stream) is what follows it.
  template <typename Start, typename End>
  void run(Running& running, moecclStream_t stream, Start start, End end);
  void runExperts(Running& running, moecclStream_t stream);
  // After a pass that failed or threw.
  void abandon(schedules::PassRun& pass, moecclStream_t stream);
  // start(stream), then pass on to its experts, or to its end; whatever it throws says how far it
  // has come.
  template <typename Start>
  void guard(schedules::PassRun& pass, moecclStream_t stream, Start start);

  // Whether the layer could make what it takes to run under an alternative.
  bool prepare(std::size_t alternative);
  // A forward pass begins: with learning the layer may change here.
  Running& beginStep();
  void dropUnused();
  // The shape that a saved choice says.
  LayerShape shapeIn(std::string_view text) const;
  void record(std::size_t alternative, Pass pass, const schedules::PassRun& run);

  const moecclMoeConfig_t config_;
  const moecclSchedule_t requested_;
  const MakeCompute make_;
  Groups groups_;
  std::shared_ptr<Compute> compute_;  // of what outlives changes
  schedules::Route route_;
  BatchStats stats_;
  ChoiceCounts choices_;          // since the last updateBias
  std::unique_ptr<Mark> passed_;  // behind the last pass
  std::unique_ptr<Learning> learning_;
  std::vector<std::shared_ptr<Running>> running_;  // by alternative; one without learning
  std::size_t now_ = 0, last_ = 0, prepared_ = 0;  // the second: of the last forward
  LayerWeights weights_;
  LayerGradients gradients_;
  bool hasStats_ = false;
  std::int64_t step_ = 0, firstBatch_ = 0;
};

}  // namespace moeccl
