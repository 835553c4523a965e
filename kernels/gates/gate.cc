// Runs a gate on the host: logits tile by tile, the gate's rule token by token, places and the
// loss. Backward, gradients go through BLAS in blocks of 256 tokens.
#include "kernels/gates/gate.h"

#include <algorithm>
#include <array>

#include "kernels/blas.h"
#include "kernels/capacity.h"
#include "kernels/gates/logits.h"
#include "kernels/gates/parts.h"
#include "kernels/gates/renormalize.h"
#include "kernels/gates/rules.h"

namespace moeccl::gates {
namespace {

// Tokens whose gradients go through the products together: enough for BLAS to run at full speed.
constexpr std::int64_t kBlockTokens = 256;

// Calls function(m, factor) with what each input m of the token is multiplied by.
template <typename Function>
void forEachJitter(const Random& random, double jitter, std::int64_t token, std::int64_t embedding,
                   Function function) {
  for (std::int64_t m = 0; m < embedding; m += 4) {
    const std::array<double, 4> uniform = random.fourUniform(token, m / 4);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(4, embedding - m); ++i)
      function(m + i, jitterFactor(jitter, uniform[i]));
  }
}

std::optional<Random> randomOf(const std::optional<Draw>& draw) {
  if (!draw) return std::nullopt;
  return Random(*draw);
}

}  // namespace

// A rule as one lane follows it, with its scratch.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) = 0;
  virtual void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                             const double* dTerms, double* dLogits) = 0;
  virtual double loss(const double* terms, double scale, double* dTerms) const = 0;
};

namespace {

template <typename Shared>
class RuleOfOneLane final : public Rule {
 public:
  explicit RuleOfOneLane(const Config& config)
      : config_(config), doubles_(Shared::doubles(config)), ints_(Shared::ints(config)) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) override {
    Shared::choose(OneLane{}, config_, token, scratch(), chosen, weights);
    Shared::addTerms(OneLane{}, config_, token, scratch(), chosen, weights, terms);
  }
  void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                     const double* dTerms, double* dLogits) override {
    Shared::differentiate(OneLane{}, config_, token, scratch(), chosen, dWeights, dTerms, dLogits);
  }
  double loss(const double* terms, double scale, double* dTerms) const override {
    return Shared::loss(OneLane{}, config_, terms, scale, dTerms);
  }

 private:
  Scratch scratch() { return {doubles_.data(), ints_.data()}; }

  const Config config_;
  std::vector<double> doubles_;
  std::vector<std::int32_t> ints_;
};

std::unique_ptr<Rule> ruleOf(const Config& config) {
  return withRule(config.kind, [&]<typename Shared>(Shared) -> std::unique_ptr<Rule> {
    return std::make_unique<RuleOfOneLane<Shared>>(config);
  });
}

}  // namespace

template <typename Real>
Gate<Real>::Gate(const Config& config)
    : config_(config),
      rule_(ruleOf(config)),
      row_(width(config)),
      dLogits_(logitsPerToken(config)),
      dGateBlock_(kBlockTokens * config.experts) {
  if (config.kind == Kind::noisy) dNoiseBlock_.resize(kBlockTokens * config.experts);
  if (config.kind == Kind::expertChoice) {
    keys_.resize(config.capacityTokens);
    order_.resize(config.capacityTokens);
  }
  if (hasJitter(config)) {
    tile_.resize(kTileTokens * config.embedding);
    block_.resize(kBlockTokens * config.embedding);
    dBlock_.resize(kBlockTokens * config.embedding);
  }
}

template <typename Real>
Gate<Real>::~Gate() = default;

template <typename Real>
void Gate<Real>::forward(const Parameters<Real>& parameters, const Part<Real>& part,
                         const Decisions<Real>& decisions, double* sums) {
  const std::optional<Random> random = randomOf(part.draw);
  computeLogits(parameters, part, random, decisions.logits);
  const std::int64_t perToken = logitsPerToken(config_), choices = width(config_);
  for (std::int64_t t = 0; t < part.tokens; ++t) {
    const std::int64_t index = part.firstToken + t;
    std::int32_t* const chosen = decisions.chosen + t * choices;
    rule_->choose(
        {decisions.logits + t * perToken, index, random ? &*random : nullptr, parameters.bias},
        chosen, row_.data(), sums + termsAt(config_, index));
    for (std::int64_t c = 0; c < choices; ++c)
      decisions.weights[t * choices + c] = static_cast<Real>(row_[c]);
    if (config_.kind == Kind::expertChoice) continue;
    for (std::int64_t c = 0; c < choices; ++c)
      if (chosen[c] >= 0) sums[chosen[c]] += 1;
  }
}

template <typename Real>
void Gate<Real>::computeLogits(const Parameters<Real>& parameters, const Part<Real>& part,
                               const std::optional<Random>& random, double* logits) {
  const std::int64_t embedding = config_.embedding, perToken = logitsPerToken(config_);
  const bool jitter = random && hasJitter(config_);
  for (std::int64_t begin = 0; begin < part.tokens; begin += kTileTokens) {
    LogitsRows<Real> rows{{}, parameters.gate, embedding, config_.experts, {}};
    for (int t = 0; t < kTileTokens; ++t) {
      const std::int64_t token = std::min(begin + t, part.tokens - 1);
      const Real* const input = part.input + token * embedding;
      rows.inputs[t] = input;
      rows.logits[t] = logits + token * perToken;
      if (!jitter) continue;
      Real* const noisy = tile_.data() + t * embedding;
      forEachJitter(
          *random, config_.jitter, part.firstToken + token, embedding,
          [&](std::int64_t m, double factor) { noisy[m] = static_cast<Real>(input[m] * factor); });
      rows.inputs[t] = noisy;
    }
    gates::computeLogits(rows);
    if (config_.kind != Kind::noisy) continue;
    rows.gate = parameters.noise;
    for (double*& at : rows.logits) at += config_.experts;
    gates::computeLogits(rows);
  }
}

template <typename Real>
void Gate<Real>::place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen,
                       Real* weights, std::int64_t* used, std::int64_t* slots, double* factors,
                       double* sums) {
  const bool expertsChoose = config_.kind == Kind::expertChoice;
  if (expertsChoose)
    chooseTokens(config_, tokens, groups, keys_.data(), order_.data(), chosen, weights, used,
                 slots);
  else
    assignSlots({config_.experts, config_.choices, config_.capacityTokens, config_.capacitySlots},
                chosen, tokens, groups, used, slots);
  const std::int64_t choices = width(config_);
  for (std::int64_t t = 0; t < tokens && renormalizedSum(config_) > 0; ++t)
    factors[t] = renormalizeToken(renormalizedSum(config_), choices, slots + t * choices,
                                  weights + t * choices);
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t e = 0; e < config_.experts; ++e) {
      const double count = static_cast<double>(used[group * config_.experts + e]);
      sums[config_.experts + e] += count;
      if (expertsChoose) sums[e] += count;
    }
}

template <typename Real>
double Gate<Real>::loss(const double* sums, double scale, double* dSums) const {
  std::fill_n(dSums, sumsSize(config_), 0.0);
  if (config_.batchTokens == 0) return 0;
  const std::int64_t terms = termsAt(config_, 0);
  return rule_->loss(sums + terms, scale, dSums + terms);
}

template <typename Real>
void Gate<Real>::backward(const Parameters<Real>& parameters, const Part<Real>& part,
                          const double* logits, const std::int32_t* chosen, const Kept<Real>& kept,
                          const Real* dWeights, const double* dSums,
                          const Gradients<Real>& gradients) {
  const std::optional<Random> random = randomOf(part.draw);
  const std::int64_t experts = config_.experts, choices = width(config_);
  const std::int64_t perToken = logitsPerToken(config_);
  for (std::int64_t begin = 0; begin < part.tokens; begin += kBlockTokens) {
    const std::int64_t count = std::min(kBlockTokens, part.tokens - begin);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t token = begin + t, index = part.firstToken + token;
      for (std::int64_t c = 0; c < choices; ++c) {
        const std::int64_t at = token * choices + c;
        row_[c] = chosen[at] < 0 ? 0.0 : static_cast<double>(dWeights[at]);
      }
      if (renormalizedSum(config_) > 0)
        renormalizeTokenBackward(renormalizedSum(config_), choices, kept.slots + token * choices,
                                 kept.weights + token * choices, kept.factors[token], row_.data());
      std::fill(dLogits_.begin(), dLogits_.end(), 0.0);
      rule_->differentiate(
          {logits + token * perToken, index, random ? &*random : nullptr, parameters.bias},
          chosen + token * choices, row_.data(), dSums + termsAt(config_, index), dLogits_.data());
      for (std::int64_t e = 0; e < experts; ++e)
        dGateBlock_[t * experts + e] = static_cast<Real>(dLogits_[e]);
      for (std::int64_t e = 0; e < perToken - experts; ++e)
        dNoiseBlock_[t * experts + e] = static_cast<Real>(dLogits_[experts + e]);
    }
    multiplyBlock(parameters, part, random, begin, count, gradients);
  }
}

// Adds the gradients of inputs and weights, from those of the logits of a block of tokens, in
// dGateBlock_ and dNoiseBlock_.
template <typename Real>
void Gate<Real>::multiplyBlock(const Parameters<Real>& parameters, const Part<Real>& part,
                               const std::optional<Random>& random, std::int64_t begin,
                               std::int64_t count, const Gradients<Real>& gradients) {
  const std::int64_t embedding = config_.embedding, experts = config_.experts;
  const Real* input = part.input + begin * embedding;
  Real* dInput = gradients.input + begin * embedding;
  const bool jitter = random && hasJitter(config_);
  const auto forEach = [&](auto function) {
    for (std::int64_t t = 0; t < count; ++t)
      forEachJitter(*random, config_.jitter, part.firstToken + begin + t, embedding,
                    [&](std::int64_t m, double factor) { function(t * embedding + m, factor); });
  };
  if (jitter) {
    forEach([&](std::int64_t at, double factor) {
      block_[at] = static_cast<Real>(input[at] * factor);
    });
    std::fill_n(dBlock_.begin(), count * embedding, Real{0});
  }
  const auto add = [&](const std::vector<Real>& dLogits, const Real* weights, Real* dWeights) {
    if (dWeights != nullptr)
      blas::multiply(CblasTrans, CblasNoTrans, embedding, experts, count,
                     jitter ? block_.data() : input, dLogits.data(), Real{1}, dWeights);
    blas::multiply(CblasNoTrans, CblasTrans, count, embedding, experts, dLogits.data(), weights,
                   Real{1}, jitter ? dBlock_.data() : dInput);
  };
  add(dGateBlock_, parameters.gate, gradients.gate);
  if (config_.kind == Kind::noisy) add(dNoiseBlock_, parameters.noise, gradients.noise);
  if (jitter)
    forEach([&](std::int64_t at, double factor) {
      dInput[at] += static_cast<Real>(dBlock_[at] * factor);
    });
}

template class Gate<float>;
template class Gate<double>;

}  // namespace moeccl::gates
