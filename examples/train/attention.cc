// Attention forward and backward, head by head.
#include "attention.h"

#include <algorithm>
#include <cmath>

#include "dense.h"

namespace train {
namespace {

const Parameter& slice(const Team& team, Parameters& parameters, const std::string& name,
                       std::int64_t embedding, int dimension) {
  const Part part =
      cut(wholeOf(1, embedding, embedding), dimension, team.mpRank(), team.shape().nMp);
  return parameters.add(name, Holders::kMpGroup, part);
}

// Softmax of each row over the columns up to its own; the others become 0.
void causalSoftmax(Real* scores, std::int64_t size) {
  for (std::int64_t row = 0; row < size; ++row) {
    Real* const at = scores + row * size;
    const Real most = *std::max_element(at, at + row + 1);
    Real sum = 0;
    for (std::int64_t i = 0; i <= row; ++i) sum += at[i] = std::exp(at[i] - most);
    for (std::int64_t i = 0; i <= row; ++i) at[i] /= sum;
    std::fill(at + row + 1, at + size, Real{0});
  }
}

// `gradient`, of the probabilities, becomes that of what the softmax was taken of.
void softmaxBackward(const Real* probabilities, Real* gradient, std::int64_t size) {
  for (std::int64_t row = 0; row < size; ++row) {
    const Real* const p = probabilities + row * size;
    Real* const g = gradient + row * size;
    Real mean = 0;
    for (std::int64_t i = 0; i <= row; ++i) mean += p[i] * g[i];
    for (std::int64_t i = 0; i < size; ++i) g[i] = p[i] * (g[i] - mean);
  }
}

}  // namespace

Attention::Attention(const Team& team, Parameters& parameters, const std::string& name,
                     std::int64_t samples, std::int64_t context, std::int64_t embedding,
                     std::int64_t heads)
    : team_(team),
      samples_(samples),
      context_(context),
      embedding_(embedding),
      heads_(heads / team.shape().nMp),
      headSize_(embedding / heads),
      width_(heads_ * headSize_),
      query_(slice(team, parameters, name + ".query", embedding, 2)),
      key_(slice(team, parameters, name + ".key", embedding, 2)),
      value_(slice(team, parameters, name + ".value", embedding, 2)),
      output_(slice(team, parameters, name + ".output", embedding, 1)) {
  const auto tokens = static_cast<std::size_t>(samples * context);
  input_.resize(tokens * static_cast<std::size_t>(embedding));
  for (std::vector<Real>* each :
       {&queries_, &keys_, &values_, &mixed_, &ofQueries_, &ofKeys_, &ofValues_, &ofMixed_})
    each->resize(tokens * static_cast<std::size_t>(width_));
  scores_.resize(tokens * static_cast<std::size_t>(heads_ * context));
  ofScores_.resize(static_cast<std::size_t>(context * context));
}

void Attention::initialise(Parameters& parameters, std::uint64_t seed, double outputScale) const {
  const double deviation = 1 / std::sqrt(static_cast<double>(embedding_));
  for (const Parameter* each : {&query_, &key_, &value_})
    parameters.fillNormal(*each, seed, deviation);
  parameters.fillNormal(output_, seed, deviation * outputScale);
}

// Where a head's columns of a sample's rows begin, in [tokens][width].
std::int64_t Attention::headAt(std::int64_t sample, std::int64_t head) const {
  return sample * context_ * width_ + head * headSize_;
}

Real* Attention::scoresOf(std::int64_t sample, std::int64_t head) {
  return scores_.data() + (sample * heads_ + head) * context_ * context_;
}

void Attention::forward(const Real* input, Real* output) {
  const std::int64_t tokens = samples_ * context_;
  std::copy_n(input, tokens * embedding_, input_.data());
  const Matrix in{input_.data(), embedding_};
  multiply(queries_.data(), width_, in, {query_.value, width_}, tokens, width_, embedding_,
           Into::kSet);
  multiply(keys_.data(), width_, in, {key_.value, width_}, tokens, width_, embedding_, Into::kSet);
  multiply(values_.data(), width_, in, {value_.value, width_}, tokens, width_, embedding_,
           Into::kSet);
  for (std::int64_t sample = 0; sample < samples_; ++sample)
    for (std::int64_t head = 0; head < heads_; ++head) forwardHead(sample, head);
  multiply(output, embedding_, {mixed_.data(), width_}, {output_.value, embedding_}, tokens,
           embedding_, width_, Into::kSet);
  team_.sumOverMpGroup(output, static_cast<std::size_t>(tokens * embedding_));
}

void Attention::forwardHead(std::int64_t sample, std::int64_t head) {
  const std::int64_t at = headAt(sample, head);
  Real* const scores = scoresOf(sample, head);
  multiply(scores, context_, {queries_.data() + at, width_}, {keys_.data() + at, width_, true},
           context_, context_, headSize_, Into::kSet, 1 / std::sqrt(static_cast<Real>(headSize_)));
  causalSoftmax(scores, context_);
  multiply(mixed_.data() + at, width_, {scores, context_}, {values_.data() + at, width_}, context_,
           headSize_, context_, Into::kSet);
}

void Attention::backward(const Real* outputGradient, Real* inputGradient) {
  const std::int64_t tokens = samples_ * context_;
  const Matrix out{outputGradient, embedding_};
  multiply(output_.gradient, embedding_, {mixed_.data(), width_, true}, out, width_, embedding_,
           tokens, Into::kAdd);
  multiply(ofMixed_.data(), width_, out, {output_.value, embedding_, true}, tokens, width_,
           embedding_, Into::kSet);
  for (std::int64_t sample = 0; sample < samples_; ++sample)
    for (std::int64_t head = 0; head < heads_; ++head) backwardHead(sample, head);

  std::fill_n(inputGradient, tokens * embedding_, Real{0});
  const auto project = [&](const Parameter& weight, const std::vector<Real>& gradient) {
    multiply(weight.gradient, width_, {input_.data(), embedding_, true}, {gradient.data(), width_},
             embedding_, width_, tokens, Into::kAdd);
    multiply(inputGradient, embedding_, {gradient.data(), width_}, {weight.value, width_, true},
             tokens, embedding_, width_, Into::kAdd);
  };
  project(query_, ofQueries_);
  project(key_, ofKeys_);
  project(value_, ofValues_);
  team_.sumOverMpGroup(inputGradient, static_cast<std::size_t>(tokens * embedding_));
}

void Attention::backwardHead(std::int64_t sample, std::int64_t head) {
  const std::int64_t at = headAt(sample, head);
  const Real* const scores = scoresOf(sample, head);
  Real* const ofScores = ofScores_.data();
  const Matrix ofMixed{ofMixed_.data() + at, width_};
  const Real scale = 1 / std::sqrt(static_cast<Real>(headSize_));
  multiply(ofScores, context_, ofMixed, {values_.data() + at, width_, true}, context_, context_,
           headSize_, Into::kSet);
  multiply(ofValues_.data() + at, width_, {scores, context_, true}, ofMixed, context_, headSize_,
           context_, Into::kSet);
  softmaxBackward(scores, ofScores, context_);
  multiply(ofQueries_.data() + at, width_, {ofScores, context_}, {keys_.data() + at, width_},
           context_, headSize_, context_, Into::kSet, scale);
  multiply(ofKeys_.data() + at, width_, {ofScores, context_, true}, {queries_.data() + at, width_},
           context_, headSize_, context_, Into::kSet, scale);
}

}  // namespace train
