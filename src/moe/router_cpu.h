// The router on host memory. Real: float, double, or an element of kernels/narrow.h; gates compute
// in Wide<Real>.
#pragma once

#include <vector>

#include "kernels/gates/gate.h"
#include "kernels/narrow.h"
#include "kernels/permute.h"
#include "src/route/host_rows.h"
#include "src/route/router.h"

namespace moeccl {

template <typename Real>
class CpuRouter final : public HostRouter<Real, Real, Router> {
 public:
  using Tokens = Router::Tokens;
  // As Compute::router.
  CpuRouter(const LayerShape& shape, std::int64_t tokens, bool keeps);

  void route(const GateWeights& gate, const std::optional<gates::Draw>& draw, const Tokens& tokens,
             const void* input, BatchSums* sums, moecclStream_t stream) override;
  void gateBackward(const GateWeights& gate, const void* weightGradients,
                    const double* sumGradients, const GateGradients& gradients, void* inputGradient,
                    moecclStream_t stream) override;
  // As Compute::list, of one that is group `group`.
  const std::int64_t* list(std::int64_t group, const ExpertCounts& counts);

 private:
  // Before the tokens from firstToken on are gated.
  void begin(std::int64_t firstToken, const std::optional<gates::Draw>& draw);
  // Gates `count` tokens more.
  void gateMore(const GateWeights& gate, const Real* input, std::int64_t count, double* sums);
  // Gives places in `groups` capacity groups to what has been gated, and adds those given to
  // `sums`.
  void place(std::int64_t groups, double* sums);
  gates::Parameters<Wide<Real>> parameters(const GateWeights& gate);
  // From a token on.
  gates::Kept<Wide<Real>> kept(std::int64_t token) const {
    return {slots_.data() + token * shape_.choices, weights_.data() + token * shape_.choices,
            factors_.empty() ? nullptr : factors_.data() + token};
  }

  const LayerShape shape_;
  const bool keeps_;
  gates::Gate<Wide<Real>> gate_;
  std::int64_t tokens_ = 0, firstToken_ = 0;
  std::optional<gates::Draw> draw_;
  std::vector<double> logits_;        // [tokens][logitsPerToken], or of one part if not kept
  std::vector<std::int32_t> chosen_;  // [tokens][choices], as are weights and slots
  std::vector<Wide<Real>> weights_;
  std::vector<std::int64_t> slots_;
  std::vector<double> factors_;                // [tokens], of a gate that renormalizes
  std::vector<std::int64_t> used_;             // [groups][experts]
  std::vector<std::int64_t> begins_, listed_;  // as listByExpert makes them, once that is asked for
  std::vector<Real> input_;                    // [tokens][embedding]
  // Used with narrow elements alone: the gate's matrices and their gradients, a block of tokens and
  // of their gradients, and the gradients of weights.
  std::vector<Wide<Real>> wideGate_, wideNoise_, gateSums_, noiseSums_;
  std::vector<Wide<Real>> block_, gradientBlock_, weightGradients_;
  std::vector<double> unseen_;  // sums that nobody looks at
};

}  // namespace moeccl
