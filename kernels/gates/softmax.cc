// Softmax top-k. With one choice it is Switch's gate (Fedus et al. 2021, section 2.1), with several
// their probabilities are divided by their sum, as in GShard.
//
//   p = softmax(logits);  chosen: the k largest logits;  weight: k = 1: p, k > 1: p / sum of the k
//   loss = E sum_e f_e P_e        (Switch, equations 4 to 6, where alpha is the caller's scale)
//     f: share of tokens whose first choice e is, before capacity    P: mean of p_e
#include <vector>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {
namespace {

class Softmax final : public Rule {
 public:
  explicit Softmax(const Config& config)
      : Rule(config), probabilities_(config.experts), work_(config.experts) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) override {
    softmax(token.logits, config_.experts, probabilities_.data());
    for (std::int32_t e = 0; e < config_.experts; ++e) {
      work_[e] = comparable(token.logits[e]);
      terms[config_.experts + e] += probabilities_[e];
    }
    largest(work_.data(), config_.experts, config_.choices, chosen);
    terms[chosen[0]] += 1;
    const double sum = weightSum(chosen);
    for (std::int32_t c = 0; c < config_.choices; ++c) weights[c] = probabilities_[chosen[c]] / sum;
  }

  void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                     const double* dTerms, double* dLogits) override {
    softmax(token.logits, config_.experts, probabilities_.data());
    std::copy_n(dTerms + config_.experts, config_.experts, work_.data());
    if (config_.choices == 1) {
      work_[chosen[0]] += dWeights[0];
    } else {  // the weights are the softmax of the chosen logits
      const double sum = weightSum(chosen);
      double mean = 0;
      for (std::int32_t c = 0; c < config_.choices; ++c)
        mean += probabilities_[chosen[c]] / sum * dWeights[c];
      for (std::int32_t c = 0; c < config_.choices; ++c)
        dLogits[chosen[c]] += probabilities_[chosen[c]] / sum * (dWeights[c] - mean);
    }
    softmaxBackward(probabilities_.data(), work_.data(), config_.experts, dLogits);
  }

  double loss(const double* terms, double scale, double* dTerms) const override {
    const double tokens = static_cast<double>(config_.batchTokens);
    return countsTimesProbabilities(terms, config_.experts, config_.experts / (tokens * tokens),
                                    scale, dTerms);
  }

 private:
  double weightSum(const std::int32_t* chosen) const {
    if (config_.choices == 1) return 1;
    double sum = 0;
    for (std::int32_t c = 0; c < config_.choices; ++c) sum += probabilities_[chosen[c]];
    return sum;
  }

  std::vector<double> probabilities_, work_;
};

}  // namespace

std::unique_ptr<Rule> softmaxRule(const Config& config) {
  return std::make_unique<Softmax>(config);
}

}  // namespace moeccl::gates
