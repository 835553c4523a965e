// A MoE layer of moeccl with its weights: the caller's experts, or shards of them, and the gate.
#pragma once

#include <moeccl/moe.h>

#include <memory>
#include <string>

#include "parameters.h"

namespace train {

class Experts {
 public:
  // Collective. `config.training` must be 1. Throws std::invalid_argument, on all ranks alike, when
  // the layer does not fit the grid.
  Experts(const Team& team, Parameters& parameters, const std::string& name,
          const moecclMoeConfig_t& config);
  void initialise(Parameters& parameters, std::uint64_t seed, double outputScale) const;
  // After Parameters::allocate(): hands weights and gradients to the layer.
  void bind() const;

  // [tokens][embedding], collective.
  void forward(const Real* input, Real* output);
  void backward(const Real* outputGradient, double auxiliaryLossScale, Real* inputGradient);

  moecclMoeStats_t stats() const;
  // Of the last forward pass; before the first, what that begins with.
  moecclSchedule_t schedule() const;
  // What the layer has learned, in one line, and back: false where it is of another layer.
  // Collective.
  std::string learned() const;
  bool restore(const std::string& learned);

 private:
  struct Destroy {
    void operator()(moecclMoeLayer* layer) const;
  };

  moecclMoeConfig_t config_;
  std::unique_ptr<moecclMoeLayer, Destroy> layer_;
  moecclMoeShapes_t shapes_ = MOECCL_MOE_SHAPES_INITIALIZER;
  const Parameter *gate_, *w1_, *b1_, *w2_, *b2_;
  // Null without a residual branch.
  const Parameter *residualW1_ = nullptr, *residualB1_ = nullptr, *residualW2_ = nullptr,
                  *residualB2_ = nullptr;
};

}  // namespace train
