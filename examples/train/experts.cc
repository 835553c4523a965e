// Makes the layer, binds its weights, and runs its passes.
#include "experts.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace train {
namespace {

// `whole` with the caller's experts, and in dimension `hidden` (0: none) its hidden units.
Part partOf(Part whole, const moecclMoeShapes_t& shapes, std::size_t hidden) {
  whole.first[0] = shapes.firstExpert;
  whole.count[0] = shapes.localExperts;
  if (hidden > 0) {
    whole.first[hidden] = shapes.firstHidden;
    whole.count[hidden] = shapes.localHidden;
  }
  return whole;
}

}  // namespace

void Experts::Destroy::operator()(moecclMoeLayer* layer) const {
  require(moecclMoeLayerDestroy(layer), "taking the layer down");
}

Experts::Experts(const Team& team, Parameters& parameters, const std::string& name,
                 const moecclMoeConfig_t& config)
    : config_(config) {
  moecclMoeLayer_t layer = nullptr;
  const moecclResult_t made = moecclMoeLayerCreate(team.grid(), &config, &layer);
  if (made == moecclInvalidArgument) throw std::invalid_argument(moecclGetLastError(nullptr));
  require(made, "making the MoE layer");
  layer_.reset(layer);
  require(moecclMoeLayerGetShapes(layer, &shapes_), "asking for the layer's shapes");

  const std::int64_t experts = config.experts, embedding = config.embedding, hidden = config.hidden;
  const auto add = [&](const char* what, Holders holders, const Part& part) {
    return &parameters.add(name + what, holders, part);
  };
  gate_ = add(".gate", Holders::kAll, wholeOf(1, embedding, experts));
  w1_ = add(".w1", Holders::kShard, partOf(wholeOf(experts, embedding, hidden), shapes_, 2));
  b1_ = add(".b1", Holders::kShard, partOf(wholeOf(experts, 1, hidden), shapes_, 2));
  w2_ = add(".w2", Holders::kShard, partOf(wholeOf(experts, hidden, embedding), shapes_, 1));
  b2_ = add(".b2", Holders::kEspGroup, partOf(wholeOf(experts, 1, embedding), shapes_, 0));
  if (config.residual == 0) return;
  residualW1_ = add(".residual.w1", Holders::kAll, wholeOf(1, embedding, config.residual));
  residualB1_ = add(".residual.b1", Holders::kAll, wholeOf(1, 1, config.residual));
  residualW2_ = add(".residual.w2", Holders::kAll, wholeOf(1, config.residual, embedding));
  residualB2_ = add(".residual.b2", Holders::kAll, wholeOf(1, 1, embedding));
}

moecclSchedule_t Experts::schedule() const {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(layer_.get(), &shapes), "asking for the layer's schedule");
  return shapes.schedule;
}

std::string Experts::learned() const {
  std::size_t bytes = 0;
  require(moecclMoeLayerSaveChoice(layer_.get(), nullptr, &bytes), "asking what is learned");
  std::string text(bytes, '\0');
  require(moecclMoeLayerSaveChoice(layer_.get(), text.data(), &bytes), "asking what is learned");
  text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

bool Experts::restore(const std::string& learned) {
  const moecclResult_t result = moecclMoeLayerRestoreChoice(layer_.get(), learned.c_str());
  if (result == moecclInvalidArgument || result == moecclInvalidUsage) return false;
  require(result, "going on with what was learned");
  return true;
}

void Experts::initialise(Parameters& parameters, std::uint64_t seed, double outputScale) const {
  const double byEmbedding = 1 / std::sqrt(static_cast<double>(config_.embedding));
  const double byHidden = 1 / std::sqrt(static_cast<double>(config_.hidden));
  parameters.fillNormal(*gate_, seed, byEmbedding);
  parameters.fillNormal(*w1_, seed, byEmbedding);
  parameters.fillNormal(*w2_, seed, byHidden * outputScale);
  if (residualW1_ == nullptr) return;
  parameters.fillNormal(*residualW1_, seed, byEmbedding);
  parameters.fillNormal(*residualW2_, seed,
                        outputScale / std::sqrt(static_cast<double>(config_.residual)));
}

void Experts::bind() const {
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = gate_->value;
  weights.w1 = w1_->value;
  weights.b1 = b1_->value;
  weights.w2 = w2_->value;
  weights.b2 = b2_->value;
  if (residualW1_ != nullptr) {
    weights.residualW1 = residualW1_->value;
    weights.residualB1 = residualB1_->value;
    weights.residualW2 = residualW2_->value;
    weights.residualB2 = residualB2_->value;
  }
  require(moecclMoeLayerSetWeights(layer_.get(), &weights), "setting weights");
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = gate_->gradient;
  gradients.w1 = w1_->gradient;
  gradients.b1 = b1_->gradient;
  gradients.w2 = w2_->gradient;
  gradients.b2 = b2_->gradient;
  if (residualW1_ != nullptr) {
    gradients.residualW1 = residualW1_->gradient;
    gradients.residualB1 = residualB1_->gradient;
    gradients.residualW2 = residualW2_->gradient;
    gradients.residualB2 = residualB2_->gradient;
  }
  require(moecclMoeLayerSetGradients(layer_.get(), &gradients), "setting gradients");
}

void Experts::forward(const Real* input, Real* output) {
  require(moecclMoeForward(layer_.get(), input, output, nullptr), "the forward pass");
}

void Experts::backward(const Real* outputGradient, double auxiliaryLossScale, Real* inputGradient) {
  require(
      moecclMoeBackward(layer_.get(), outputGradient, auxiliaryLossScale, inputGradient, nullptr),
      "the backward pass");
}

moecclMoeStats_t Experts::stats() const {
  moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  require(moecclMoeGetStats(layer_.get(), &stats), "asking for statistics");
  return stats;
}

}  // namespace train
