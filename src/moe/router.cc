#include "src/moe/router.h"

#include <algorithm>

namespace moeccl {
namespace {

std::size_t sized(std::initializer_list<std::int64_t> sizes) {
  return static_cast<std::size_t>(elementCount(sizes));
}

GateShape gateShape(const LayerShape& shape) {
  return {shape.embedding, shape.experts, shape.choices};
}

}  // namespace

BatchSums::BatchSums(const LayerShape& shape)
    : experts_(shape.experts), values_(sized({shape.grid.nMp, 4, shape.experts})) {}

Router::Router(const LayerShape& shape, int parts, bool keeps) : shape_(shape), keeps_(keeps) {
  const std::size_t perChoice = sized({parts, shape.partTokens, shape.choices});
  chosen_.resize(perChoice);
  weights_.resize(perChoice);
  slots_.resize(perChoice);
  used_.resize(sized({shape.groups, shape.experts}));
  workspace_.resize(static_cast<std::size_t>(gateWorkspace(gateShape(shape))));
  if (!keeps) return;
  input_.resize(sized({parts, shape.partTokens, shape.embedding}));
  probabilities_.resize(sized({parts, shape.partTokens, shape.experts}));
  logitGradients_.resize(probabilities_.size());
  weightGradients_.resize(perChoice);
}

void Router::route(const float* gate, const float* input, int firstPart, int parts,
                   BatchSums& sums) {
  tokens_ = 0;
  for (int part = firstPart; part < firstPart + parts; ++part) {
    const std::int64_t begin = std::min(shape_.tokens, part * shape_.partTokens);
    const std::int64_t count = std::min(shape_.tokens - begin, shape_.partTokens);
    std::fill_n(sums.row(part), sums.rowSize(), 0.0);
    chooseExperts(
        gateShape(shape_), input + tokens_ * shape_.embedding, gate, count, workspace_,
        chosen_.data() + tokens_ * shape_.choices, weights_.data() + tokens_ * shape_.choices,
        keeps_ ? probabilities_.data() + tokens_ * shape_.experts : nullptr, sums.gateSums(part));
    tokens_ += count;
  }
  if (keeps_) std::copy_n(input, tokens_ * shape_.embedding, input_.data());
  groups_ = shape_.groups * parts / shape_.grid.nMp;
  assignSlots({shape_.experts, shape_.choices, shape_.groupTokens, shape_.groupSlots},
              chosen_.data(), tokens_, groups_, used_.data(), slots_.data());
  // Which part a kept choice is counted in does not matter: the counts are exact.
  double* const kept = sums.kept(firstPart);
  for (std::int64_t group = 0; group < groups_; ++group)
    for (std::int64_t expert = 0; expert < shape_.experts; ++expert)
      kept[expert] += static_cast<double>(used_[group * shape_.experts + expert]);
}

void Router::scatter(const float* input, std::int64_t expertStride, float* rows) const {
  scatterTokens(choices(), input, shape_.embedding, expertStride, rows);
  clearUnused(used_.data(), groups_, shape_.experts, shape_.groupSlots, shape_.embedding,
              expertStride, rows);
}

void Router::combine(const float* rows, std::int64_t expertStride, float* output) const {
  combineTokens(choices(), rows, shape_.embedding, expertStride, output);
}

void Router::combineBackward(const float* rows, const float* outputGradient,
                             std::int64_t expertStride, float* rowGradients) {
  combineTokensBackward(choices(), rows, outputGradient, shape_.embedding, expertStride,
                        rowGradients, weightGradients_.data());
  clearUnused(used_.data(), groups_, shape_.experts, shape_.groupSlots, shape_.embedding,
              expertStride, rowGradients);
}

void Router::scatterBackward(const float* rowGradients, std::int64_t expertStride,
                             float* inputGradient) const {
  scatterTokensBackward(choices(), rowGradients, shape_.embedding, expertStride, inputGradient);
}

void Router::gateBackward(const float* gate, const double* probabilityGradients,
                          float* gateGradient, float* inputGradient) {
  const GateShape shape = gateShape(shape_);
  softmaxTopKBackward(shape, {chosen_.data(), weights_.data(), probabilities_.data(), tokens_},
                      weightGradients_.data(), probabilityGradients, logitGradients_.data());
  gateProductBackward(shape, input_.data(), gate, logitGradients_.data(), tokens_, gateGradient,
                      inputGradient);
}

void summarise(const LayerShape& shape, BatchSums& sums, BatchStats* stats) {
  const double tokens = static_cast<double>(shape.tokens);
  double loss = 0;
  stats->droppedChoices = 0;
  for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
    double probability = 0, first = 0, assigned = 0, kept = 0;
    for (int part = 0; part < shape.grid.nMp; ++part) {
      const GateSums row = sums.gateSums(part);
      probability += row.probability[expert];
      first += row.first[expert];
      assigned += row.assigned[expert];
      kept += sums.kept(part)[expert];
    }
    loss += (first / tokens) * (probability / tokens);
    stats->first[expert] = static_cast<std::int64_t>(first);
    stats->assigned[expert] = static_cast<std::int64_t>(assigned);
    stats->kept[expert] = static_cast<std::int64_t>(kept);
    stats->droppedChoices += stats->assigned[expert] - stats->kept[expert];
  }
  stats->auxiliaryLoss = shape.tokens == 0 ? 0.0 : shape.experts * loss;
}

void auxiliaryLossBackward(const LayerShape& shape, const BatchStats& stats, double scale,
                           double* gradients) {
  const double tokens = static_cast<double>(shape.tokens);
  for (std::int32_t expert = 0; expert < shape.experts; ++expert)
    gradients[expert] =
        scale * shape.experts * (static_cast<double>(stats.first[expert]) / tokens) / tokens;
}

}  // namespace moeccl
