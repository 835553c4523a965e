// The gradients of the reference, against differences of what it computes forward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "examples/moe_reference.h"

namespace moe_reference {
namespace {

// All numbers are multiples of 2^-8, so that steps of 2^-10 are exact, as float32 too.
constexpr double kStep = 1.0 / 1024;

struct Case {
  Layer layer;
  std::vector<double> input, outputGradient;
  double auxiliaryLossScale = 0.75;
  Chance chance;
};

// Random numbers of the kind that the gate asks for, such that jitter is exact.
Chance chanceOf(const moecclMoeConfig_t& config) {
  const auto uniform = [](std::int64_t token, std::int64_t i) {
    return static_cast<double>(1 + (5 * token + 3 * i) % 7) / 8;
  };
  Chance chance;
  if (config.gate == moecclGateSwitch) chance.jitter = uniform;
  if (config.gate == moecclGateGShard)
    chance.second = [=](std::int64_t token) { return uniform(token, 0); };
  if (config.gate == moecclGateNoisyTopK)
    chance.normal = [=](std::int64_t token, std::int64_t expert) {
      return 2 * uniform(token, expert) - 1;
    };
  return chance;
}

std::vector<double> coarse(std::mt19937& random, std::int64_t count) {
  std::uniform_int_distribution<int> value(-256, 256);
  std::vector<double> values(count);
  for (double& each : values) each = static_cast<double>(value(random)) / 256;
  return values;
}

Case caseOf(const moecclMoeConfig_t& config, int nMp, bool biases, unsigned seed) {
  std::mt19937 random(seed);
  Case it;
  it.layer.config = config;
  it.layer.nMp = nMp;
  const std::int64_t matrix = config.embedding * config.hidden;
  it.layer.gate = coarse(random, config.embedding * config.experts);
  it.chance = chanceOf(config);
  if (config.gate == moecclGateNoisyTopK)
    it.layer.noise = coarse(random, config.embedding * config.experts);
  if (config.gate == moecclGateSigmoid)
    for (double bias : coarse(random, config.experts)) it.layer.bias.push_back(bias / 4);
  it.layer.w1 = coarse(
      random, config.experts * config.embedding * moe_reference::innerOf(config, config.hidden));
  it.layer.w2 = coarse(random, config.experts * matrix);
  if (biases) it.layer.b1 = coarse(random, config.experts * innerOf(config, config.hidden));
  if (biases) it.layer.b2 = coarse(random, config.experts * config.embedding);
  if (config.residual > 0) {
    const std::int64_t inner = innerOf(config, config.residual);
    it.layer.residualW1 = coarse(random, config.embedding * inner);
    it.layer.residualW2 = coarse(random, config.residual * config.embedding);
    if (biases) it.layer.residualB1 = coarse(random, inner);
    if (biases) it.layer.residualB2 = coarse(random, config.embedding);
  }
  it.input = coarse(random, config.tokens * config.embedding);
  it.outputGradient = coarse(random, config.tokens * config.embedding);
  return it;
}

double loss(const Case& it) {
  const Result result = forward(it.layer, it.input.data(), it.chance);
  double sum = it.auxiliaryLossScale * result.auxiliaryLoss;
  for (std::size_t i = 0; i < result.output.size(); ++i)
    sum += it.outputGradient[i] * result.output[i];
  return sum;
}

// Calls function with a number some steps away from where it is.
template <typename Function>
auto away(double& number, int steps, Function function) {
  const double here = number;
  number = here + steps * kStep;
  const auto result = function();
  number = here;
  return result;
}

double product(const double* a, std::int64_t stride, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i * stride] * b[i];
  return sum;
}

// No step moves a hidden unit past relu's corner: by more than 4 steps none can move, since no
// number is above 1. w1 [M][hidden]; b1 may be null.
bool awayFromCorners(const Case& it, std::int64_t hidden, const double* w1, const double* b1) {
  constexpr double kMargin = 8 * kStep;
  const moecclMoeConfig_t& config = it.layer.config;
  if (config.activation != moecclMoeRelu) return true;
  for (std::int64_t token = 0; token < config.tokens; ++token)
    for (std::int64_t h = 0; h < hidden; ++h) {
      const double* const numbers = it.input.data() + token * config.embedding;
      const double unit =
          (b1 == nullptr ? 0 : b1[h]) + product(w1 + h, hidden, numbers, config.embedding);
      if (std::abs(unit) < kMargin) return false;
    }
  return true;
}

bool awayFromCorners(const Case& it) {
  const moecclMoeConfig_t& config = it.layer.config;
  const auto bias = [](const std::vector<double>& all, std::int64_t begin) {
    return all.empty() ? nullptr : all.data() + begin;
  };
  for (std::int64_t e = 0; e < config.experts; ++e)
    if (!awayFromCorners(it, config.hidden,
                         it.layer.w1.data() + e * config.embedding * config.hidden,
                         bias(it.layer.b1, e * config.hidden)))
      return false;
  return awayFromCorners(it, config.residual, it.layer.residualW1.data(),
                         bias(it.layer.residualB1, 0));
}

// Nor does any change a choice, their order or who has a place.
bool smooth(Case& it) {
  const auto choices = [&] {
    const Result result = forward(it.layer, it.input.data(), it.chance);
    return std::pair(result.chosen, result.placeless);
  };
  const auto here = choices();
  for (auto* numbers : {&it.input, &it.layer.gate, &it.layer.noise})
    for (double& number : *numbers)
      for (int steps : {-2, -1, 1, 2})
        if (away(number, steps, choices) != here) return false;
  return awayFromCorners(it);
}

// Central differences of fourth order.
double slope(const Case& it, double& number) {
  const auto at = [&](int steps) { return away(number, steps, [&] { return loss(it); }); };
  return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * kStep);
}

void compare(const char* name, const Case& it, std::vector<double>& numbers,
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

// Compares the gradients of the first of many cases where the loss is smooth; whether choices are
// dropped.
bool compareSmoothCase(const moecclMoeConfig_t& config, bool biases) {
  unsigned seed = 1;
  Case it = caseOf(config, 2, biases, seed);
  while (!smooth(it)) it = caseOf(config, 2, biases, ++seed);
  SCOPED_TRACE(testing::Message() << "gate " << config.gate << ", activation " << config.activation
                                  << ", choices " << config.topK << ", capacity factor "
                                  << config.capacityFactor << ", seed " << seed);
  const Gradients gradients = backward(it.layer, it.input.data(), it.outputGradient.data(),
                                       it.auxiliaryLossScale, it.chance);
  compare("input", it, it.input, gradients.input);
  compare("gate", it, it.layer.gate, gradients.gate);
  compare("noise", it, it.layer.noise, gradients.noise);
  compare("w1", it, it.layer.w1, gradients.w1);
  compare("b1", it, it.layer.b1, gradients.b1);
  compare("w2", it, it.layer.w2, gradients.w2);
  compare("b2", it, it.layer.b2, gradients.b2);
  compare("residual w1", it, it.layer.residualW1, gradients.residualW1);
  compare("residual b1", it, it.layer.residualB1, gradients.residualB1);
  compare("residual w2", it, it.layer.residualW2, gradients.residualW2);
  compare("residual b2", it, it.layer.residualB2, gradients.residualB2);
  return !forward(it.layer, it.input.data(), it.chance).placeless.empty();
}

moecclMoeConfig_t smallConfig() {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = 7;
  config.embedding = 5;
  config.hidden = 6;
  config.experts = 4;
  return config;
}

TEST(Reference, GradientsAreTheSlopesOfTheLoss) {
  int dropping = 0;
  for (moecclMoeActivation_t activation : {moecclMoeGelu, moecclMoeRelu, moecclMoeSwiglu})
    for (std::int64_t choices : {1, 2, 3})
      for (double factor : {0.4, 2.0})
        for (bool biases : {false, true}) {
          moecclMoeConfig_t config = smallConfig();
          config.topK = choices;
          config.capacityFactor = factor;
          config.activation = activation;
          dropping += compareSmoothCase(config, biases) ? 1 : 0;
        }
  EXPECT_GE(dropping, 12);
}

TEST(Reference, GradientsOfEveryGateAreSlopes) {
  for (int gate = 0; gate < moecclNumGates; ++gate)
    for (std::int64_t choices : {1, 2, 3})
      for (double factor : {0.5, 1.5}) {
        moecclMoeConfig_t config = smallConfig();
        config.gate = static_cast<moecclMoeGate_t>(gate);
        config.topK = choices;
        config.capacityFactor = factor;
        if (gate == moecclGateGShard && choices != 2) continue;
        if (gate == moecclGateSwitch && choices != 1) continue;
        if (gate == moecclGateSwitch) config.switchGate.jitter = 0.5;
        if (gate == moecclGateNoisyTopK) {
          config.experts = choices + 1;  // so that the order of choices is that of all experts
          config.noisyTopK.importanceWeight = 0.5;
          config.noisyTopK.loadWeight = 2;
        }
        if (gate == moecclGateSigmoid) {
          config.sigmoid.sequenceTokens = 3;
          config.sigmoid.routingScale = 2.5;
          config.sigmoid.expertGroups = choices == 2 ? 2 : 0;
          config.sigmoid.topGroups = choices == 2 ? 1 : 0;
        }
        compareSmoothCase(config, true);
      }
}

TEST(Reference, GradientsOfTheResidualBranchAreSlopes) {
  for (moecclMoeActivation_t activation : {moecclMoeGelu, moecclMoeRelu, moecclMoeSwiglu})
    for (bool biases : {false, true}) {
      moecclMoeConfig_t config = smallConfig();
      config.topK = 1;
      config.capacityFactor = 0.5;
      config.residual = 3;
      config.activation = activation;
      compareSmoothCase(config, biases);
    }
}

TEST(Reference, DroplessGivesEveryChoiceAPlace) {
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    if (gate == moecclGateExpertChoice) continue;  // capacity is what it is about
    moecclMoeConfig_t config = smallConfig();
    config.gate = static_cast<moecclMoeGate_t>(gate);
    config.topK = gate == moecclGateSwitch ? 1 : 2;
    config.experts = gate == moecclGateNoisyTopK ? 3 : 4;
    config.dropless = 1;
    EXPECT_FALSE(compareSmoothCase(config, true));
    Case it = caseOf(config, 2, true, 1);
    const Result dropless = forward(it.layer, it.input.data(), it.chance);
    it.layer.config.dropless = 0;
    it.layer.config.capacityFactor = 100;
    const Result roomy = forward(it.layer, it.input.data(), it.chance);
    EXPECT_EQ(dropless.output, roomy.output);
    EXPECT_EQ(dropless.kept, roomy.kept);
    EXPECT_EQ(dropless.capacity, 0);
  }
}

}  // namespace
}  // namespace moe_reference
