// The router on host memory. Real: float, double, or an element of kernels/narrow.h; gates compute
// in Wide<Real>.
#pragma once

#include <vector>

#include "kernels/gates/gate.h"
#include "kernels/narrow.h"
#include "kernels/permute.h"
#include "src/route/router.h"

namespace moeccl {

template <typename Real>
class CpuRouter final : public Router {
 public:
  // As Compute::router.
  CpuRouter(const LayerShape& shape, std::int64_t tokens, bool keeps);

  void route(const GateWeights& gate, const std::optional<gates::Draw>& draw, const Tokens& tokens,
             const void* input, BatchSums* sums, moecclStream_t stream) override;
  void routeGiven(const std::int32_t* experts, const void* weights, std::int64_t count,
                  std::int64_t groups, double* sums, moecclStream_t stream) override;
  void scatter(const void* input, std::int64_t expertStride, void* rows,
               moecclStream_t stream) override;
  void combine(const void* rows, std::int64_t expertStride, void* output,
               moecclStream_t stream) override;
  void combineBackward(const void* rows, const void* outputGradient, std::int64_t expertStride,
                       void* rowGradients, void* weightGradients, moecclStream_t stream) override;
  void scatterBackward(const void* rowGradients, std::int64_t expertStride, void* inputGradient,
                       moecclStream_t stream) override;
  void gateBackward(const GateWeights& gate, const void* weightGradients,
                    const double* sumGradients, const GateGradients& gradients, void* inputGradient,
                    moecclStream_t stream) override;
  schedules::Chosen chosen() override;
  void setWeightGradients(const float* from, void* to, moecclStream_t stream) override;
  // As Compute::list, of one that is group `group`.
  const std::int64_t* list(std::int64_t group, const ExpertCounts& counts);
  void gather(Listed listed, const void* input, void* rows, moecclStream_t stream) override;
  void add(Listed listed, const void* rows, void* output, moecclStream_t stream) override;
  void addBackward(Listed listed, const void* rows, const void* outputGradient, void* rowGradients,
                   void* weightGradients, moecclStream_t stream) override;
  void gatherBackward(Listed listed, const void* rowGradients, void* inputGradient,
                      moecclStream_t stream) override;

 private:
  // Before the tokens from firstToken on are gated.
  void begin(std::int64_t firstToken, const std::optional<gates::Draw>& draw);
  // Gates `count` tokens more.
  void gateMore(const GateWeights& gate, const Real* input, std::int64_t count, double* sums);
  // Gives places in `groups` capacity groups to what has been gated, and adds those given to
  // `sums`.
  void place(std::int64_t groups, double* sums);
  gates::Parameters<Wide<Real>> parameters(const GateWeights& gate);
  void addListedByToken(Listed listed, bool weighted, const void* rows, void* output);
  void clearUnusedPlaces(std::int64_t expertStride, Real* rows) const;

  Choices<Wide<Real>> choices() const {
    return {chosen_.data(), slots_.data(), weights_.data(), tokens_, shape_.choices};
  }
  // From a token on.
  gates::Kept<Wide<Real>> kept(std::int64_t token) const {
    return {slots_.data() + token * shape_.choices, weights_.data() + token * shape_.choices,
            factors_.empty() ? nullptr : factors_.data() + token};
  }
  std::span<const std::int64_t> indices(Listed listed) const {
    return {listed_.data() + listed.begin, static_cast<std::size_t>(listed.count)};
  }

  const LayerShape shape_;
  const bool keeps_;
  gates::Gate<Wide<Real>> gate_;
  std::int64_t tokens_ = 0, firstToken_ = 0, groups_ = 0;
  std::optional<gates::Draw> draw_;
  std::vector<double> logits_;        // [tokens][logitsPerToken], or of one part if not kept
  std::vector<std::int32_t> chosen_;  // [tokens][choices], as are weights and slots
  std::vector<std::int32_t> kept_;    // the same without those that have no place
  std::vector<Wide<Real>> weights_;
  std::vector<std::int64_t> slots_;
  std::vector<double> factors_;                // [tokens], of a gate that renormalizes
  std::vector<std::int64_t> used_;             // [groups][experts]
  std::vector<std::int64_t> begins_, listed_;  // as listByExpert makes them, once that is asked for
  std::vector<Real> input_;                    // [tokens][embedding]
  // Of narrow elements alone: the gate's matrices and their gradients, a block of tokens and of
  // their gradients, the gradients of weights, and where in a list each choice is.
  std::vector<Wide<Real>> wideGate_, wideNoise_, gateSums_, noiseSums_;
  std::vector<Wide<Real>> block_, gradientBlock_, weightGradients_;
  std::vector<std::int64_t> positions_;
  std::vector<double> unseen_;  // sums that nobody looks at
};

}  // namespace moeccl
