#include "src/moe/router.h"

#include <algorithm>

namespace moeccl {
namespace {

std::size_t sized(std::initializer_list<std::int64_t> sizes) {
  return static_cast<std::size_t>(elementCount(sizes));
}

}  // namespace

Router::Router(const LayerShape& shape, std::int64_t tokens, bool keeps)
    : shape_(shape), keeps_(keeps), gate_(shape.gate) {
  const std::size_t perChoice = sized({tokens, shape.choices});
  chosen_.resize(perChoice);
  weights_.resize(perChoice);
  slots_.resize(perChoice);
  used_.resize(sized({shape.groups, shape.experts}));
  logits_.resize(sized(
      {keeps ? tokens : std::min(tokens, shape.partTokens), gates::logitsPerToken(shape.gate)}));
  if (!keeps) return;
  input_.resize(sized({tokens, shape.embedding}));
  weightGradients_.resize(perChoice);
}

void Router::routeBatch(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                        const float* input, BatchSums& sums) {
  begin(0, draw);
  for (int part = 0; part < shape_.grid.nMp; ++part) {
    sums.clear(part);
    gateMore(gate, input + tokens_ * shape_.embedding,
             std::min(shape_.tokens - tokens_, shape_.partTokens), sums.row(part));
  }
  // Which part a kept choice is counted in does not matter: the counts are exact.
  place(shape_.groups, sums.row(0));
}

void Router::routeChunk(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                        const float* input, int part, std::int64_t chunk, BatchSums& sums) {
  if (chunk == 0) sums.clear(part);
  begin(shape_.firstToken(part, chunk), draw);
  gateMore(gate, input, std::min(shape_.tokens - firstToken_, shape_.chunkTokens()),
           sums.row(part));
  place(shape_.groups / shape_.grid.nMp / shape_.chunks, sums.row(part));
}

void Router::begin(std::int64_t firstToken, const std::optional<gates::Draw>& draw) {
  tokens_ = 0;
  firstToken_ = firstToken;
  draw_ = draw;
}

void Router::gateMore(const GateWeights& gate, const float* input, std::int64_t count,
                      double* sums) {
  const std::int64_t perToken = gates::logitsPerToken(shape_.gate);
  gate_.forward(
      gate, {input, count, firstToken_ + tokens_, draw_},
      {logits_.data() + (keeps_ ? tokens_ * perToken : 0),
       chosen_.data() + tokens_ * shape_.choices, weights_.data() + tokens_ * shape_.choices},
      sums);
  if (keeps_)
    std::copy_n(input, count * shape_.embedding, input_.data() + tokens_ * shape_.embedding);
  tokens_ += count;
}

void Router::place(std::int64_t groups, double* sums) {
  groups_ = groups;
  gate_.place(tokens_, groups_, chosen_.data(), weights_.data(), used_.data(), slots_.data(), sums);
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
