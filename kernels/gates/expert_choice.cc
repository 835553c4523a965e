// Expert choice (Zhou et al. 2022, section 3.2): experts choose tokens.
//
//   S = softmax(logits), over the experts of each token;  of every capacity group each expert takes
//   the tokens with its largest S, as many as it has places, with weight S
//
// So all places are filled as long as there are tokens, no loss is needed, and a token has from none
// to all of the experts: choice e of a token is expert e. S is compared as it is handed out, in
// Real; of equal ones the earlier token is taken. An expert's places are in token order, for the
// sake of the copies; the paper has them in the order of S.
#include <numeric>
#include <vector>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {
namespace {

class ExpertChoice final : public Rule {
 public:
  explicit ExpertChoice(const Config& config) : Rule(config), probabilities_(config.experts) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double*) override {
    softmax(token.logits, config_.experts, weights);
    std::iota(chosen, chosen + config_.experts, 0);
  }

  void differentiate(const Token& token, const std::int32_t*, const double* dWeights, const double*,
                     double* dLogits) override {
    softmax(token.logits, config_.experts, probabilities_.data());
    softmaxBackward(probabilities_.data(), dWeights, config_.experts, dLogits);
  }

  double loss(const double*, double, double* dTerms) const override {
    std::fill_n(dTerms, 2 * static_cast<std::int64_t>(config_.experts), 0.0);
    return 0;
  }

 private:
  std::vector<double> probabilities_;
};

}  // namespace

std::unique_ptr<Rule> expertChoiceRule(const Config& config) {
  return std::make_unique<ExpertChoice>(config);
}

template <typename Real>
void chooseTokens(const Config& config, std::int64_t tokens, std::int64_t groups, double* keys,
                  std::int64_t* order, std::int32_t* chosen, Real* weights, std::int64_t* used,
                  std::int64_t* slots) {
  const std::int64_t experts = config.experts;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = std::min(tokens, group * config.capacityTokens);
    const std::int64_t count = std::min(tokens - begin, config.capacityTokens);
    const std::int64_t taken = std::min(count, config.capacitySlots);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const auto at = [&](std::int64_t token) { return (begin + token) * experts + expert; };
      for (std::int64_t token = 0; token < count; ++token)
        keys[token] = comparable(static_cast<double>(weights[at(token)]));
      std::iota(order, order + count, std::int64_t{0});
      std::nth_element(order, order + taken, order + count, [keys](std::int64_t a, std::int64_t b) {
        return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
      });
      std::sort(order, order + taken);
      for (std::int64_t i = 0; i < taken; ++i)
        slots[at(order[i])] = group * config.capacitySlots + i;
      for (std::int64_t i = taken; i < count; ++i) {
        slots[at(order[i])] = chosen[at(order[i])] = -1;
        weights[at(order[i])] = 0;
      }
      used[group * experts + expert] = taken;
    }
  }
}

template void chooseTokens(const Config&, std::int64_t, std::int64_t, double*, std::int64_t*,
                           std::int32_t*, float*, std::int64_t*, std::int64_t*);
template void chooseTokens(const Config&, std::int64_t, std::int64_t, double*, std::int64_t*,
                           std::int32_t*, double*, std::int64_t*, std::int64_t*);

}  // namespace moeccl::gates
