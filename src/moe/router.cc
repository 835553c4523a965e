#include "src/moe/router.h"

#include <algorithm>

namespace moeccl {
namespace {

std::size_t sized(std::initializer_list<std::int64_t> sizes) {
  return static_cast<std::size_t>(elementCount(sizes));
}

}  // namespace

Router::Router(const LayerShape& shape, int parts, bool keeps)
    : shape_(shape), keeps_(keeps), gate_(shape.gate) {
  const std::size_t perChoice = sized({parts, shape.partTokens, shape.choices});
  chosen_.resize(perChoice);
  weights_.resize(perChoice);
  slots_.resize(perChoice);
  used_.resize(sized({shape.groups, shape.experts}));
  logits_.resize(sized(
      {keeps ? parts : std::min(parts, 1), shape.partTokens, gates::logitsPerToken(shape.gate)}));
  if (!keeps) return;
  input_.resize(sized({parts, shape.partTokens, shape.embedding}));
  weightGradients_.resize(perChoice);
}

std::int64_t Router::firstToken(int part) const {
  return std::min(shape_.tokens, part * shape_.partTokens);
}

void Router::route(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                   const float* input, int firstPart, int parts, BatchSums& sums) {
  const std::int64_t perToken = gates::logitsPerToken(shape_.gate);
  tokens_ = 0;
  firstToken_ = firstToken(firstPart);
  draw_ = draw;
  for (int part = firstPart; part < firstPart + parts; ++part) {
    const std::int64_t count = firstToken(part + 1) - firstToken(part);
    std::fill_n(sums.row(part), sums.rowSize(), 0.0);
    gate_.forward(
        gate, {input + tokens_ * shape_.embedding, count, firstToken_ + tokens_, draw},
        {logits_.data() + (keeps_ ? tokens_ * perToken : 0),
         chosen_.data() + tokens_ * shape_.choices, weights_.data() + tokens_ * shape_.choices},
        sums.row(part));
    tokens_ += count;
  }
  if (keeps_) std::copy_n(input, tokens_ * shape_.embedding, input_.data());
  groups_ = shape_.groups * parts / shape_.grid.nMp;
  // Which part a kept choice is counted in does not matter: the counts are exact.
  gate_.place(tokens_, groups_, chosen_.data(), weights_.data(), used_.data(), slots_.data(),
              sums.row(firstPart));
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

void Router::gateBackward(const GateWeights& gate, const double* sumGradients,
                          const GateGradients& gradients, float* inputGradient) {
  gate_.backward(gate, {input_.data(), tokens_, firstToken_, draw_}, logits_.data(), chosen_.data(),
                 weightGradients_.data(), sumGradients,
                 {gradients.gate, gradients.noise, inputGradient});
}

}  // namespace moeccl
