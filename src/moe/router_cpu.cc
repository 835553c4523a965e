// Gates tokens part by part on the host. Elements of 16 bits are widened in blocks of 256 tokens,
// and gradients are narrowed again.
#include "src/moe/router_cpu.h"

#include <algorithm>
#include <type_traits>

namespace moeccl {
namespace {

std::size_t sized(std::initializer_list<std::int64_t> sizes) {
  return static_cast<std::size_t>(elementCount(sizes));
}

template <typename Real>
const Real* read(const void* elements) {
  return static_cast<const Real*>(elements);
}
template <typename Real>
Real* written(void* elements) {
  return static_cast<Real*>(elements);
}

// Tokens that are converted together.
constexpr std::int64_t kBlockTokens = 256;

template <typename Real>
const Wide<Real>* widened(const void* from, std::int64_t count, std::vector<Wide<Real>>& to) {
  if constexpr (!kIsNarrow<Real>) {
    return read<Real>(from);
  } else {
    if (from == nullptr) return nullptr;
    to.resize(static_cast<std::size_t>(count));
    widen(read<Real>(from), count, to.data());
    return to.data();
  }
}

}  // namespace

template <typename Real>
CpuRouter<Real>::CpuRouter(const LayerShape& shape, std::int64_t tokens, bool keeps)
    : HostRouter<Real, Real, Router>(
          {shape.embedding, shape.experts, shape.choices, shape.groupSlots}),
      shape_(shape),
      keeps_(keeps),
      gate_(shape.gate) {
  const std::size_t perChoice = sized({tokens, shape.choices});
  chosen_.resize(perChoice);
  weights_.resize(perChoice);
  slots_.resize(perChoice);
  if (shape.gate.renormalize) factors_.resize(sized({tokens}));
  begins_.resize(static_cast<std::size_t>(shape.experts) + 1);
  listed_.resize(perChoice);
  used_.resize(sized({shape.groups, shape.experts}));
  logits_.resize(sized(
      {keeps ? tokens : std::min(tokens, shape.partTokens), gates::logitsPerToken(shape.gate)}));
  if (!keeps) return;
  input_.resize(sized({tokens, shape.embedding}));
}

template <typename Real>
void CpuRouter<Real>::route(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                            const Tokens& tokens, const void* input, BatchSums* sums,
                            moecclStream_t) {
  begin(tokens.first, draw);
  if (sums == nullptr) unseen_.assign(sized({gates::sumsSize(shape_.gate)}), 0.0);
  const auto row = [&](int part) { return sums == nullptr ? unseen_.data() : sums->row(part); };
  while (tokens_ < tokens.count) {
    const std::int64_t at = tokens.first + tokens_, part = at / shape_.partTokens;
    gateMore(gate, read<Real>(input) + tokens_ * shape_.embedding,
             std::min(tokens.count - tokens_, (part + 1) * shape_.partTokens - at),
             row(static_cast<int>(part)));
  }
  // Which part a kept choice is counted in does not matter: the counts are exact.
  place(tokens.groups, row(tokens.part));
}

template <typename Real>
void CpuRouter<Real>::begin(std::int64_t firstToken, const std::optional<gates::Draw>& draw) {
  tokens_ = 0;
  firstToken_ = firstToken;
  draw_ = draw;
}

template <typename Real>
void CpuRouter<Real>::gateMore(const GateWeights& gate, const Real* input, std::int64_t count,
                               double* sums) {
  const std::int64_t perToken = gates::logitsPerToken(shape_.gate);
  const auto parameters = this->parameters(gate);
  const std::int64_t most = kIsNarrow<Real> ? kBlockTokens : std::max<std::int64_t>(count, 1);
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t tokens = std::min(most, count - begin), at = tokens_ + begin;
    gate_.forward(
        parameters,
        {widened<Real>(input + begin * shape_.embedding, tokens * shape_.embedding, block_), tokens,
         firstToken_ + at, draw_},
        {logits_.data() + (keeps_ ? at : begin) * perToken, chosen_.data() + at * shape_.choices,
         weights_.data() + at * shape_.choices},
        sums);
  }
  if (keeps_)
    std::copy_n(input, count * shape_.embedding, input_.data() + tokens_ * shape_.embedding);
  tokens_ += count;
}

template <typename Real>
void CpuRouter<Real>::place(std::int64_t groups, double* sums) {
  gate_.place(tokens_, groups, chosen_.data(), weights_.data(), used_.data(), slots_.data(),
              factors_.data(), sums);
  this->tables_ = {tokens_,       groups,       chosen_.data(), weights_.data(),
                   slots_.data(), used_.data(), listed_.data()};
}

template <typename Real>
gates::Parameters<Wide<Real>> CpuRouter<Real>::parameters(const GateWeights& gate) {
  const std::int64_t size = shape_.embedding * shape_.experts;
  return {widened<Real>(gate.gate, size, wideGate_), widened<Real>(gate.noise, size, wideNoise_),
          gate.bias};
}

template <typename Real>
void CpuRouter<Real>::gateBackward(const GateWeights& gate, const void* weightGradients,
                                   const double* sumGradients, const GateGradients& gradients,
                                   void* inputGradient, moecclStream_t) {
  const auto parameters = this->parameters(gate);
  if constexpr (!kIsNarrow<Real>) {
    gate_.backward(parameters, {input_.data(), tokens_, firstToken_, draw_}, logits_.data(),
                   chosen_.data(), kept(0), read<Real>(weightGradients), sumGradients,
                   {written<Real>(gradients.gate), written<Real>(gradients.noise),
                    written<Real>(inputGradient)});
  } else {
    const std::int64_t embedding = shape_.embedding, size = embedding * shape_.experts;
    const std::int64_t perToken = gates::logitsPerToken(shape_.gate);
    const float* const ofWeights =
        widened<Real>(weightGradients, tokens_ * shape_.choices, weightGradients_);
    const auto sums = [&](void* wanted, std::vector<float>& all) {
      if (wanted == nullptr) return static_cast<float*>(nullptr);
      all.assign(static_cast<std::size_t>(size), 0);
      return all.data();
    };
    float* const ofGate = sums(gradients.gate, gateSums_);
    float* const ofNoise = sums(gradients.noise, noiseSums_);
    for (std::int64_t begin = 0; begin < tokens_; begin += kBlockTokens) {
      const std::int64_t count = std::min(kBlockTokens, tokens_ - begin);
      Real* const gradient = written<Real>(inputGradient) + begin * embedding;
      widened<Real>(gradient, count * embedding, gradientBlock_);
      gate_.backward(parameters,
                     {widened<Real>(input_.data() + begin * embedding, count * embedding, block_),
                      count, firstToken_ + begin, draw_},
                     logits_.data() + begin * perToken, chosen_.data() + begin * shape_.choices,
                     kept(begin), ofWeights + begin * shape_.choices, sumGradients,
                     {ofGate, ofNoise, gradientBlock_.data()});
      narrow(gradientBlock_.data(), count * embedding, gradient);
    }
    if (ofGate != nullptr) addNarrowed(ofGate, size, written<Real>(gradients.gate));
    if (ofNoise != nullptr) addNarrowed(ofNoise, size, written<Real>(gradients.noise));
  }
}

template <typename Real>
const std::int64_t* CpuRouter<Real>::list(std::int64_t group, const ExpertCounts& counts) {
  const Choices<Wide<Real>> choices{chosen_.data(), slots_.data(), weights_.data(), tokens_,
                                    shape_.choices};
  listByExpert(choices, shape_.experts, begins_.data(), listed_.data());
  for (std::size_t e = 0; e + 1 < begins_.size(); ++e)
    counts.set(group, static_cast<std::int64_t>(e), begins_[e + 1] - begins_[e]);
  return begins_.data();
}

template class CpuRouter<float>;
template class CpuRouter<double>;
template class CpuRouter<NarrowFloat16>;
template class CpuRouter<NarrowBfloat16>;

}  // namespace moeccl
