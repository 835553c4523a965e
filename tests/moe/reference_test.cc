// The gradients of the reference, against differences of what it computes forward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "examples/moe_reference.h"

namespace moe_reference {
namespace {

// All numbers are multiples of 2^-8, so that steps of 2^-10 are exact in float.
constexpr float kStep = 1.0f / 1024;

struct Case {
  Layer layer;
  std::vector<float> input, outputGradient;
  double auxiliaryLossScale = 0.75;
};

std::vector<float> coarse(std::mt19937& random, std::int64_t count) {
  std::uniform_int_distribution<int> value(-256, 256);
  std::vector<float> values(count);
  for (float& each : values) each = static_cast<float>(value(random)) / 256;
  return values;
}

Case caseOf(const moecclMoeConfig_t& config, int nMp, bool biases, unsigned seed) {
  std::mt19937 random(seed);
  Case it;
  it.layer.config = config;
  it.layer.nMp = nMp;
  const std::int64_t matrix = config.embedding * config.hidden;
  it.layer.gate = coarse(random, config.embedding * config.experts);
  it.layer.w1 = coarse(random, config.experts * matrix);
  it.layer.w2 = coarse(random, config.experts * matrix);
  if (biases) it.layer.b1 = coarse(random, config.experts * config.hidden);
  if (biases) it.layer.b2 = coarse(random, config.experts * config.embedding);
  it.input = coarse(random, config.tokens * config.embedding);
  it.outputGradient = coarse(random, config.tokens * config.embedding);
  return it;
}

double product(const float* a, std::int64_t stride, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i * stride]) * b[i];
  return sum;
}

// No step moves a logit past another, or a hidden unit past relu's corner: by more than 4 steps neither
// can move, since no number is above 1.
bool smooth(const Case& it) {
  constexpr double kMargin = 8 * kStep;
  const moecclMoeConfig_t& config = it.layer.config;
  for (std::int64_t token = 0; token < config.tokens; ++token) {
    const float* const numbers = it.input.data() + token * config.embedding;
    std::vector<double> logits;
    for (std::int64_t e = 0; e < config.experts; ++e) {
      logits.push_back(
          product(it.layer.gate.data() + e, config.experts, numbers, config.embedding));
      for (std::int64_t h = 0; h < config.hidden; ++h) {
        const double bias = it.layer.b1.empty() ? 0 : it.layer.b1[e * config.hidden + h];
        const float* const column = it.layer.w1.data() + e * config.embedding * config.hidden + h;
        const double unit = bias + product(column, config.hidden, numbers, config.embedding);
        if (config.activation == moecclMoeRelu && std::abs(unit) < kMargin) return false;
      }
    }
    std::sort(logits.begin(), logits.end());
    for (std::size_t i = 1; i < logits.size(); ++i)
      if (logits[i] - logits[i - 1] < kMargin) return false;
  }
  return true;
}

double loss(const Case& it) {
  const Result result = forward(it.layer, it.input.data());
  double sum = it.auxiliaryLossScale * result.auxiliaryLoss;
  for (std::size_t i = 0; i < result.output.size(); ++i)
    sum += it.outputGradient[i] * result.output[i];
  return sum;
}

// Central differences of fourth order.
double slope(const Case& it, float& number) {
  const float here = number;
  const auto at = [&](int steps) {
    number = here + static_cast<float>(steps) * kStep;
    const double value = loss(it);
    number = here;
    return value;
  };
  return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * kStep);
}

void compare(const char* name, const Case& it, std::vector<float>& numbers,
             const std::vector<double>& gradients) {
  if (numbers.empty()) return;  // a bias that is not there
  ASSERT_EQ(numbers.size(), gradients.size()) << name;
  double scale = 0, largest = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    scale = std::max(scale, std::abs(gradients[i]));
    largest = std::max(largest, std::abs(slope(it, numbers[i]) - gradients[i]));
  }
  EXPECT_GT(scale, 1e-3) << name;
  EXPECT_LE(largest, 1e-8 * scale) << name;
}

TEST(Reference, GradientsAreTheSlopesOfTheLoss) {
  int dropping = 0;
  for (moecclMoeActivation_t activation : {moecclMoeGelu, moecclMoeRelu})
    for (std::int64_t choices : {1, 2, 3})
      for (double factor : {0.4, 2.0})
        for (bool biases : {false, true}) {
          moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
          config.tokens = 7;
          config.embedding = 5;
          config.hidden = 6;
          config.experts = 4;
          config.topK = choices;
          config.capacityFactor = factor;
          config.activation = activation;
          unsigned seed = 1;
          Case it = caseOf(config, 2, biases, seed);
          while (!smooth(it)) it = caseOf(config, 2, biases, ++seed);
          SCOPED_TRACE(testing::Message() << "activation " << activation << ", choices " << choices
                                          << ", capacity factor " << factor << ", seed " << seed);
          dropping += forward(it.layer, it.input.data()).placeless.empty() ? 0 : 1;
          const Gradients gradients =
              backward(it.layer, it.input.data(), it.outputGradient.data(), it.auxiliaryLossScale);
          compare("input", it, it.input, gradients.input);
          compare("gate", it, it.layer.gate, gradients.gate);
          compare("w1", it, it.layer.w1, gradients.w1);
          compare("b1", it, it.layer.b1, gradients.b1);
          compare("w2", it, it.layer.w2, gradients.w2);
          compare("b2", it, it.layer.b2, gradients.b2);
        }
  EXPECT_GE(dropping, 12);
}

}  // namespace
}  // namespace moe_reference
