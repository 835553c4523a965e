// The layer behind moecclMoeLayer_t.
#pragma once

#include <memory>
#include <vector>

#include "moeccl/moe.h"
#include "src/moe/schedule.h"

namespace moeccl {

class MoeLayer {
 public:
  // Collective over the grid: ranks compare their configs before each checks its own, so that all
  // of them fail where one does. `environment`: the value of MOECCL_SCHEDULE, or null. Throws
  // Error.
  MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, const char* environment);

  const LayerShape& shape() const { return shape_; }
  const Groups& groups() const { return groups_; }

  void setWeights(const LayerWeights& weights);
  bool hasWeights() const { return weights_.gate.gate != nullptr; }

  // As moecclMoeForward. On failure failedPhase() says where, and moecclGetLastError(NULL) why.
  moecclResult_t forward(const void* input, void* output, moecclStream_t stream);
  void setGradients(const LayerGradients& gradients) { gradients_ = gradients; }
  // As moecclMoeBackward, after a forward of a layer for training; else as forward.
  moecclResult_t backward(const void* outputGradient, double auxiliaryLossScale,
                          void* inputGradient, moecclStream_t stream);
  // As moecclMoeLayerSetStep and moecclMoeUpdateBias.
  void setStep(std::int64_t step) { step_ = step; }
  moecclResult_t updateBias(double* bias, double speed);
  const char* failedPhase() const { return failedPhase_; }

  // Null before the first forward has completed.
  const BatchStats* stats() const { return hasStats_ ? &stats_ : nullptr; }

 private:
  // Before a pass: on return `stream` is what its work goes on.
  moecclResult_t begin(moecclStream_t& stream);

  Groups groups_;
  LayerShape shape_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Schedule> schedule_;
  LayerWeights weights_;
  LayerGradients gradients_;
  BatchSums sums_;
  BatchStats stats_;
  bool hasStats_ = false;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> assigned_;  // [experts], since the last updateBias
  const char* failedPhase_ = "";
};

}  // namespace moeccl
