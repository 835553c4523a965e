// Gradients of the gates against central differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/kernels/gate_pass.h"

namespace moeccl::gates {
namespace {

constexpr double kScale = 0.7;  // of the auxiliary loss

template <typename Real>
std::vector<Real> gradientsOfWeights(const Pass<Real>& run) {
  std::mt19937 random(5);
  std::vector<Real> gradients(run.weights.size());
  for (std::size_t at = 0; at < gradients.size(); ++at) {
    const float value = std::uniform_real_distribution<float>(-1, 1)(random);
    if (run.chosen[at] < 0)
      gradients[at] = NAN;  // nobody looks at it
    else
      gradients[at] = run.slots[at] < 0 ? 0 : value;
  }
  return gradients;
}

// A function whose gradient by the weights is dWeights, with the loss; NaN where choices are not
// those of `base`, since there it jumps.
double objective(const Batch& batch, const Pass<double>& base,
                 const std::vector<double>& dWeights) {
  const Pass<double> run(batch, kScale, {batch.config.batchTokens});
  if (run.chosen != base.chosen || run.slots != base.slots) return NAN;
  double sum = kScale * run.loss;
  for (std::size_t at = 0; at < dWeights.size(); ++at)
    if (run.chosen[at] >= 0) sum += dWeights[at] * run.weights[at];
  return sum;
}

// values: those of `batch` by which `gradient` is.
void compareWithDifferences(Batch& batch, std::vector<double>& values, const Pass<double>& base,
                            const std::vector<double>& dWeights,
                            const std::vector<double>& gradient, const char* name) {
  constexpr double kStep = 3e-5;
  double largest = 0;
  for (double value : gradient) largest = std::max(largest, std::fabs(value));
  // Where the function is constant, differences are rounding errors.
  const double tolerance = std::max(1e-6 * largest, 1e-9);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = objective(batch, base, dWeights);
    values[i] = value - kStep;
    const double below = objective(batch, base, dWeights);
    values[i] = value;
    ASSERT_FALSE(std::isnan(above) || std::isnan(below)) << "choices change with " << name << i;
    ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), tolerance) << name << i;
  }
}

TEST(GateGradients, AreCentralDifferences) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    Batch batch = batchOf(config, seed++);
    SCOPED_TRACE(batch.name);
    for (bool random : {true, false}) {
      if (!random) batch.draw.reset();
      const std::vector<std::int64_t> ends = {config.batchTokens / 3, config.batchTokens};
      Pass<double> run(batch, kScale, ends);
      const std::vector<double> dWeights = gradientsOfWeights(run);
      run.backward(batch, dWeights, ends);
      compareWithDifferences(batch, batch.gate, run, dWeights, run.dGate, "gate ");
      compareWithDifferences(batch, batch.input, run, dWeights, run.dInput, "input ");
      if (config.kind == Kind::noisy)
        compareWithDifferences(batch, batch.noise, run, dWeights, run.dNoise, "noise ");
      if (HasFatalFailure()) return;
    }
  }
}

// The gradients must be there: differences of nothing agree with everything.
TEST(GateGradients, ComeFromWeightsAndFromTheLoss) {
  const auto largest = [](const std::vector<double>& values) {
    double result = 0;
    for (double value : values) result = std::max(result, std::fabs(value));
    return result;
  };
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    const bool several = config.kind == Kind::softmax || config.choices != 1;
    if (config.batchTokens < 30 || config.experts == 1 || !several) continue;
    const Batch batch = batchOf(config, seed++);
    const std::vector<std::int64_t> ends = {config.batchTokens};
    Pass<double> run(batch, 0, ends);
    run.backward(batch, gradientsOfWeights(run), ends);
    EXPECT_GT(largest(run.dGate), 1e-3) << batch.name;
    EXPECT_GT(largest(run.dInput), 1e-3) << batch.name;
    const bool flat = config.kind == Kind::expertChoice || config.choices == config.experts;
    if (flat && config.kind != Kind::noisy) continue;
    Pass<double> lossAlone(batch, 1, ends);
    lossAlone.backward(batch, std::vector<double>(run.weights.size()), ends);
    EXPECT_GT(largest(lossAlone.dGate), 1e-5) << batch.name;
  }
}

// Parts with more tokens than go through the products together.
TEST(GateGradients, DoNotDependOnTheCut) {
  for (Kind kind : {Kind::softmax, Kind::noisy, Kind::gshard, Kind::expertChoice, Kind::sigmoid}) {
    Config config{kind, 600, 9, 6, 2, 100, 30};
    config.jitter = 0.3;
    config.sequenceTokens = 70;
    const Batch batch = batchOf(config, 4);
    SCOPED_TRACE(batch.name);
    Pass<double> whole(batch, kScale, {600}), parts(batch, kScale, {1, 200, 400, 600});
    const std::vector<double> dWeights = gradientsOfWeights(whole);
    whole.backward(batch, dWeights, {600});
    parts.backward(batch, dWeights, {1, 200, 400, 600});
    for (std::size_t i = 0; i < whole.dGate.size(); ++i)
      ASSERT_NEAR(whole.dGate[i], parts.dGate[i], 1e-12);
    for (std::size_t i = 0; i < whole.dNoise.size(); ++i)
      ASSERT_NEAR(whole.dNoise[i], parts.dNoise[i], 1e-12);
    for (std::size_t i = 0; i < whole.dInput.size(); ++i)
      ASSERT_NEAR(whole.dInput[i], parts.dInput[i], 1e-14);
  }
}

// The products of floats are calls of their own.
TEST(GateGradients, OfFloatsAreNearThoseOfDoubles) {
  for (Kind kind : {Kind::softmax, Kind::noisy, Kind::gshard, Kind::expertChoice, Kind::sigmoid}) {
    const Config config{kind, 600, 9, 6, 2, 100, 30};
    const Batch batch = batchOf(config, 4);
    SCOPED_TRACE(batch.name);
    const std::vector<std::int64_t> ends = {600};
    Pass<float> narrow(batch, kScale, ends);
    Pass<double> wide(batch, kScale, ends);
    ASSERT_EQ(narrow.slots, wide.slots);
    narrow.backward(batch, gradientsOfWeights(narrow), ends);
    wide.backward(batch, gradientsOfWeights(wide), ends);
    for (std::size_t i = 0; i < wide.dGate.size(); ++i)
      ASSERT_NEAR(narrow.dGate[i], wide.dGate[i], 2e-5);
    for (std::size_t i = 0; i < wide.dNoise.size(); ++i)
      ASSERT_NEAR(narrow.dNoise[i], wide.dNoise[i], 2e-5);
    for (std::size_t i = 0; i < wide.dInput.size(); ++i)
      ASSERT_NEAR(narrow.dInput[i], wide.dInput[i], 1e-6);
  }
}

TEST(GateGradients, AreAdded) {
  for (double jitter : {0.0, 0.2}) {
    Config config{Kind::softmax, 20, 9, 6, 2, 20, 20};
    config.jitter = jitter;
    const Batch batch = batchOf(config, 4);
    Pass<double> run(batch, kScale, {20});
    const std::vector<double> dWeights = gradientsOfWeights(run);
    run.backward(batch, dWeights, {20});
    Gate<double> gate(config);
    std::vector<double> dGate(run.dGate.size(), 1), dInput(run.dInput.size(), 2);
    gate.backward({run.gate.data()}, {run.input.data(), 20, 0, batch.draw}, run.logits.data(),
                  run.chosen.data(), {}, dWeights.data(), run.dSums.data(),
                  {dGate.data(), nullptr, dInput.data()});
    for (std::size_t i = 0; i < dGate.size(); ++i) ASSERT_NEAR(dGate[i], run.dGate[i] + 1, 1e-14);
    for (std::size_t i = 0; i < dInput.size(); ++i)
      ASSERT_NEAR(dInput[i], run.dInput[i] + 2, 1e-14);
  }
}

}  // namespace
}  // namespace moeccl::gates
