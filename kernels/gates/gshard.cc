// GShard's top-2 (Lepikhin et al. 2020, algorithm 1).
//
//   p = softmax(logits);  e1, e2: the two largest;  g1 = p1 / (p1 + p2), g2 = p2 / (p1 + p2)
//   e1 with weight g1;  e2 with weight g2 where 2 g2 > a uniform random number (line 19), else none
//   loss = mean over e of (c_e / S) m_e        (line 13, where S is the whole batch)
//     c: tokens whose first choice e is, before capacity    m: mean of p_e
//
// A second choice that is not taken takes no place; in the paper it leaves one empty (line 22).
// Without random numbers the second choice is always taken.
#include <vector>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {
namespace {

class Gshard final : public Rule {
 public:
  explicit Gshard(const Config& config)
      : Rule(config), probabilities_(config.experts), work_(config.experts) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) override {
    const Pair pair = bestTwo(token, chosen);
    weights[0] = pair.first;
    weights[1] = pair.second;
    for (std::int32_t e = 0; e < config_.experts; ++e)
      terms[config_.experts + e] += probabilities_[e];
    terms[chosen[0]] += 1;
    if (!token.random || 2 * pair.second > token.random->uniform(token.index, 0)) return;
    chosen[1] = -1;
    weights[1] = 0;
  }

  void differentiate(const Token& token, const std::int32_t*, const double* dWeights,
                     const double* dTerms, double* dLogits) override {
    std::int32_t best[2];  // the first one's weight depends on the second, taken or not
    const Pair pair = bestTwo(token, best);
    const double change = pair.first * pair.second * (dWeights[0] - dWeights[1]);
    dLogits[best[0]] += change;
    dLogits[best[1]] -= change;
    softmaxBackward(probabilities_.data(), dTerms + config_.experts, config_.experts, dLogits);
  }

  double loss(const double* terms, double scale, double* dTerms) const override {
    const double tokens = static_cast<double>(config_.batchTokens);
    return countsTimesProbabilities(terms, config_.experts, 1 / (config_.experts * tokens * tokens),
                                    scale, dTerms);
  }

 private:
  struct Pair {
    double first, second;
  };

  // The two weights, before chance; leaves the probabilities of all experts.
  Pair bestTwo(const Token& token, std::int32_t* best) {
    softmax(token.logits, config_.experts, probabilities_.data());
    for (std::int32_t e = 0; e < config_.experts; ++e) work_[e] = comparable(token.logits[e]);
    largest(work_.data(), config_.experts, 2, best);
    const double first = probabilities_[best[0]], second = probabilities_[best[1]];
    return {first / (first + second), second / (first + second)};
  }

  std::vector<double> probabilities_, work_;
};

}  // namespace

std::unique_ptr<Rule> gshardRule(const Config& config) { return std::make_unique<Gshard>(config); }

}  // namespace moeccl::gates
