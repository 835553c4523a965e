// Sigmoid affinities, balanced by a bias instead of by a loss, and choices from few groups of
// experts (DeepSeek-V3, sections 2.1.2 and 2.1.3).
//
//   s = sigmoid(logits)                                                      (equation 15)
//   A group's score is the sum of the two largest s + bias in it; the topGroups best are kept. (The
//   paper sums K_r / M of them, which is two in the model that it describes.)
//   chosen: the k largest s + bias in kept groups                            (16)
//   weight: routingScale s / sum of the k s, without the bias                (13)
//   loss = mean over sequences of sum_e f_e P_e                              (17 to 20)
//     f: E / (k T) choices of e    P: mean of s_e / sum of all s    T: tokens of the sequence
//
// Logits may be so small that all s round to zero; their logarithms do not, so quotients of s are
// made as softmax(log s).
#include <vector>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {
namespace {

class Sigmoid final : public Rule {
 public:
  explicit Sigmoid(const Config& config)
      : Rule(config),
        keys_(config.experts),
        groupScores_(config.expertGroups),
        groups_(config.topGroups),
        logAffinities_(config.experts),
        shares_(config.experts),
        dLogAffinities_(config.experts) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) override {
    for (std::int32_t e = 0; e < config_.experts; ++e)
      keys_[e] =
          comparable(sigmoid(token.logits[e]) + (token.bias == nullptr ? 0.0 : token.bias[e]));
    excludeGroups();
    largest(keys_.data(), config_.experts, config_.choices, chosen);
    takeLogarithms(token);
    sharesOfChosen(chosen, weights);
    for (std::int32_t c = 0; c < config_.choices; ++c) {
      weights[c] *= config_.routingScale;
      terms[chosen[c]] += 1;
    }
    softmax(logAffinities_.data(), config_.experts, shares_.data());
    for (std::int32_t e = 0; e < config_.experts; ++e) terms[config_.experts + e] += shares_[e];
  }

  void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                     const double* dTerms, double* dLogits) override {
    takeLogarithms(token);
    std::fill(dLogAffinities_.begin(), dLogAffinities_.end(), 0.0);
    sharesOfChosen(chosen, shares_.data());
    double mean = 0;
    for (std::int32_t c = 0; c < config_.choices; ++c) mean += shares_[c] * dWeights[c];
    for (std::int32_t c = 0; c < config_.choices; ++c)
      dLogAffinities_[chosen[c]] += config_.routingScale * shares_[c] * (dWeights[c] - mean);
    softmax(logAffinities_.data(), config_.experts, shares_.data());
    softmaxBackward(shares_.data(), dTerms + config_.experts, config_.experts,
                    dLogAffinities_.data());
    for (std::int32_t e = 0; e < config_.experts; ++e)
      dLogits[e] += dLogAffinities_[e] * sigmoid(-token.logits[e]);
  }

  double loss(const double* terms, double scale, double* dTerms) const override {
    const std::int64_t experts = config_.experts, batch = config_.batchTokens;
    const std::int64_t length = config_.sequenceTokens == 0 ? batch : config_.sequenceTokens;
    const std::int64_t sequences = (batch - 1) / length + 1;
    double sum = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const double tokens = static_cast<double>(std::min(length, batch - s * length));
      const double factor = static_cast<double>(experts) /
                            (config_.choices * tokens * tokens * static_cast<double>(sequences));
      sum += countsTimesProbabilities(terms + 2 * s * experts, config_.experts, factor, scale,
                                      dTerms + 2 * s * experts);
    }
    return sum;
  }

 private:
  // Takes the experts of all but the best groups out of keys_.
  void excludeGroups() {
    if (config_.topGroups == config_.expertGroups) return;
    const std::int32_t size = config_.experts / config_.expertGroups;
    for (std::int32_t g = 0; g < config_.expertGroups; ++g) {
      std::int32_t best[2];
      const std::int32_t count = std::min(size, 2);
      largest(keys_.data() + g * size, size, count, best);
      groupScores_[g] = 0;
      for (std::int32_t i = 0; i < count; ++i) groupScores_[g] += keys_[g * size + best[i]];
    }
    largest(groupScores_.data(), config_.expertGroups, config_.topGroups, groups_.data());
    std::sort(groups_.begin(), groups_.end());
    auto kept = groups_.begin();
    for (std::int32_t g = 0; g < config_.expertGroups; ++g) {
      if (kept != groups_.end() && *kept == g)
        ++kept;
      else
        std::fill_n(keys_.begin() + g * size, size, -std::numeric_limits<double>::infinity());
    }
  }

  void takeLogarithms(const Token& token) {
    for (std::int32_t e = 0; e < config_.experts; ++e)
      logAffinities_[e] = -softplus(-token.logits[e]);
  }

  void sharesOfChosen(const std::int32_t* chosen, double* shares) const {
    for (std::int32_t c = 0; c < config_.choices; ++c) shares[c] = logAffinities_[chosen[c]];
    softmax(shares, config_.choices, shares);
  }

  std::vector<double> keys_, groupScores_;
  std::vector<std::int32_t> groups_;
  std::vector<double> logAffinities_, shares_, dLogAffinities_;  // [experts]
};

}  // namespace

std::unique_ptr<Rule> sigmoidRule(const Config& config) {
  return std::make_unique<Sigmoid>(config);
}

void updateBias(const double* assigned, std::int32_t experts, double speed, double* bias) {
  double total = 0;
  for (std::int32_t e = 0; e < experts; ++e) total += assigned[e];
  // Compared without a division, so that an even load is even.
  for (std::int32_t e = 0; e < experts; ++e) {
    const double load = assigned[e] * experts;
    if (load < total) bias[e] += speed;
    if (load > total) bias[e] -= speed;
  }
}

}  // namespace moeccl::gates
