// Noisy top-k (Shazeer et al. 2017, section 2.1 and appendix A).
//
//   H_i = (x W_g)_i + normal_i softplus((x W_noise)_i)                             (equation 4)
//   chosen: the k largest H;  weights: softmax over those                         (3 and 5)
//   importance_i = sum over tokens of the weight of i                             (6)
//   P_i = Phi(((x W_g)_i - kth_excluding(H, k, i)) / softplus((x W_noise)_i))     (8 and 9)
//   load_i = sum over tokens of P_i                                               (10)
//   loss = importanceWeight CV(importance)^2 + loadWeight CV(load)^2              (7 and 11)
//
// kth_excluding: the k-th largest but for i itself. With k = E there is none, and P is 1. Where the
// softplus rounds to zero, P is 0 or 1. Without random numbers normal is 0. CV: standard deviation
// of all experts, over the mean; 0 where the mean is.
#include <numbers>
#include <vector>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {
namespace {

// Sets gradient [count] to scale * that of weight * CV(values)^2.
double squaredVariation(const double* values, std::int32_t count, double weight, double scale,
                        double* gradient) {
  double sum = 0, squares = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    sum += values[i];
    squares += values[i] * values[i];
  }
  std::fill_n(gradient, count, 0.0);
  if (sum == 0) return 0;
  const double mean = sum / count;
  double variance = 0;
  for (std::int32_t i = 0; i < count; ++i)
    variance += (values[i] - mean) * (values[i] - mean) / count;
  for (std::int32_t i = 0; i < count; ++i)
    gradient[i] = scale * weight * 2 * count / (sum * sum) * (values[i] - squares / sum);
  return weight * variance / (mean * mean);
}

class Noisy final : public Rule {
 public:
  explicit Noisy(const Config& config)
      : Rule(config),
        normal_(config.experts),
        spread_(config.experts),
        noisy_(config.experts),
        work_(config.experts),
        dSpread_(config.experts),
        weights_(config.choices),
        best_(std::min(config.choices + 1, config.experts)),
        rival_(config.experts) {}

  void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) override {
    rank(token);
    std::copy_n(best_.data(), config_.choices, chosen);
    weightsOf(chosen, weights);
    for (std::int32_t c = 0; c < config_.choices; ++c) terms[chosen[c]] += weights[c];
    for (std::int32_t e = 0; e < config_.experts; ++e) {
      double& load = terms[config_.experts + e];
      if (rival_[e] < 0)
        load += 1;
      else if (!(spread_[e] > 0))
        load += token.logits[e] > noisy_[rival_[e]] ? 1 : 0;
      else
        load += std::erfc(-lead(token, e) / std::numbers::sqrt2) / 2;
    }
  }

  void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                     const double* dTerms, double* dLogits) override {
    rank(token);
    std::vector<double>& dNoisy = work_;
    std::fill(dNoisy.begin(), dNoisy.end(), 0.0);
    std::fill(dSpread_.begin(), dSpread_.end(), 0.0);
    differentiateWeights(chosen, dWeights, dTerms, dNoisy.data());
    differentiateLoad(token, dTerms + config_.experts, dNoisy.data(), dLogits);
    for (std::int32_t e = 0; e < config_.experts; ++e) {
      dLogits[e] += dNoisy[e];
      dLogits[config_.experts + e] +=
          (dSpread_[e] + dNoisy[e] * normal_[e]) * sigmoid(token.logits[config_.experts + e]);
    }
  }

  double loss(const double* terms, double scale, double* dTerms) const override {
    const std::int32_t experts = config_.experts;
    return squaredVariation(terms, experts, config_.importanceWeight, scale, dTerms) +
           squaredVariation(terms + experts, experts, config_.loadWeight, scale, dTerms + experts);
  }

 private:
  // Sets normal_, spread_, noisy_, the best of them in falling order, and whom each must beat.
  void rank(const Token& token) {
    const std::int32_t experts = config_.experts, choices = config_.choices;
    for (std::int32_t e = 0; e < experts; ++e) {
      normal_[e] = token.random ? token.random->normal(token.index, e) : 0.0;
      spread_[e] = softplus(token.logits[experts + e]);
      noisy_[e] = token.logits[e] + normal_[e] * spread_[e];
      work_[e] = comparable(noisy_[e]);
    }
    const auto ranked = static_cast<std::int32_t>(best_.size());
    largest(work_.data(), experts, ranked, best_.data());
    std::fill(rival_.begin(), rival_.end(), best_[choices - 1]);
    for (std::int32_t c = 0; c < choices; ++c)
      rival_[best_[c]] = ranked > choices ? best_[choices] : -1;
  }

  // The argument of Phi.
  double lead(const Token& token, std::int32_t expert) const {
    return (token.logits[expert] - noisy_[rival_[expert]]) / spread_[expert];
  }

  void weightsOf(const std::int32_t* chosen, double* weights) const {
    for (std::int32_t c = 0; c < config_.choices; ++c) weights[c] = noisy_[chosen[c]];
    softmax(weights, config_.choices, weights);
  }

  void differentiateWeights(const std::int32_t* chosen, const double* dWeights,
                            const double* dImportance, double* dNoisy) {
    weightsOf(chosen, weights_.data());
    double mean = 0;
    for (std::int32_t c = 0; c < config_.choices; ++c)
      mean += weights_[c] * (dWeights[c] + dImportance[chosen[c]]);
    for (std::int32_t c = 0; c < config_.choices; ++c)
      dNoisy[chosen[c]] += weights_[c] * (dWeights[c] + dImportance[chosen[c]] - mean);
  }

  void differentiateLoad(const Token& token, const double* dLoad, double* dNoisy, double* dLogits) {
    for (std::int32_t e = 0; e < config_.experts; ++e) {
      if (rival_[e] < 0 || !(spread_[e] > 0)) continue;
      const double ahead = lead(token, e);
      const double density =
          std::exp(-ahead * ahead / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      if (density == 0) continue;  // `ahead` may be infinite
      const double slope = dLoad[e] * density / spread_[e];
      dLogits[e] += slope;
      dNoisy[rival_[e]] -= slope;
      dSpread_[e] -= slope * ahead;
    }
  }

  std::vector<double> normal_, spread_, noisy_, work_, dSpread_;  // [experts]
  std::vector<double> weights_;                                   // [choices]
  std::vector<std::int32_t> best_;                                // one more than the choices
  std::vector<std::int32_t> rival_;                               // [experts]; -1: none
};

}  // namespace

std::unique_ptr<Rule> noisyRule(const Config& config) { return std::make_unique<Noisy>(config); }

}  // namespace moeccl::gates
