// The trainer's gradients against differences of its loss, along a random direction in each tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "examples/train/model.h"
#include "examples/train/random.h"

namespace train {
namespace {

constexpr bool kDouble = sizeof(Real) == sizeof(double);

// Every token goes to three experts, of the first block to all, and finds places: no jumps there.
ModelConfig smoothModel() {
  ModelConfig config;
  config.characters = 7;
  config.embedding = 12;
  config.heads = 3;
  config.hidden = 10;
  config.experts = {3, 4};
  config.residual = 5;
  config.topK = 3;
  config.capacityFactor = 3;
  config.context = 5;
  config.samples = 2;
  config.capacityGroups = 2;
  return config;
}

class GradientTest : public testing::Test {
 protected:
  void SetUp() override {
    moecclUniqueId id;
    ASSERT_EQ(moecclGetUniqueId(&id), moecclSuccess);
    ASSERT_EQ(moecclCommInitRank(&world_, 1, id, 0), moecclSuccess);
    const Random random(3, "characters");
    for (std::int64_t i = 0; i < config_.tokens(); ++i) {
      inputs_.push_back(static_cast<std::int32_t>(random.bits(2 * i) % 7));
      targets_.push_back(static_cast<std::int32_t>(random.bits(2 * i + 1) % 7));
    }
    for (std::int64_t i = 0; i < config_.tokens() * config_.characters; ++i)
      teacher_.push_back(random.normal(i));
    softmax(teacher_.data(), config_.tokens(), config_.characters);
  }
  void TearDown() override { EXPECT_EQ(moecclCommDestroy(world_), moecclSuccess); }

  double loss(Model& model) {
    const Outcome outcome =
        model.forward(inputs_.data(), {targets_.data(), teacher_.data(), kWeight}, kLossScale);
    model.backward(inputs_.data(), kBalance);
    return kLossScale * (outcome.crossEntropy + kWeight * outcome.divergence) +
           kBalance * outcome.auxiliaryLoss;
  }

  static constexpr double kLossScale = 0.25, kBalance = 0.5, kWeight = 0.75;
  const ModelConfig config_ = smoothModel();
  moecclComm_t world_ = nullptr;
  std::vector<std::int32_t> inputs_, targets_;
  std::vector<Real> teacher_;  // probabilities
};

TEST_F(GradientTest, IsTheSlopeOfTheLossInEveryTensor) {
  const Team team(world_, 1, {1, 1, 1, moecclOrderEspEp});
  Parameters parameters(team);
  Model model(team, parameters, config_, moecclScheduleS1);
  parameters.allocate();
  model.initialise(parameters);
  model.bind();
  loss(model);

  std::vector<double> slopes;
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const Parameter& parameter = parameters.at(i);
    const Random random(4, parameter.name);
    double slope = 0;
    for (std::int64_t j = 0; j < parameter.part.size(); ++j)
      slope += static_cast<double>(parameter.gradient[j]) * random.normal(j);
    slopes.push_back(slope);
  }
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const Parameter& parameter = parameters.at(i);
    SCOPED_TRACE(parameter.name);
    const Random random(4, parameter.name);
    const std::vector<Real> before(parameter.value, parameter.value + parameter.part.size());
    // Small, so that no token's first choice changes, at which the auxiliary loss would jump; large
    // enough for the precision.
    constexpr double kStep = kDouble ? 1e-5 : 1e-3, kTolerance = kDouble ? 1e-6 : 2e-3;
    double losses[2];
    for (const int side : {0, 1}) {
      for (std::int64_t j = 0; j < parameter.part.size(); ++j)
        parameter.value[j] =
            before[j] + static_cast<Real>((2 * side - 1) * kStep) * random.normal(j);
      losses[side] = loss(model);
    }
    std::copy(before.begin(), before.end(), parameter.value);
    const double expected = (losses[1] - losses[0]) / (2 * kStep);
    EXPECT_NEAR(slopes[static_cast<std::size_t>(i)], expected,
                kTolerance * (std::abs(expected) + 0.1));
  }
  // Every kind of tensor was among them: embeddings, 3 norms, attention, experts, residual branch,
  // output.
  EXPECT_EQ(parameters.count(), 2 + 2 * (2 + 4 + 2 + 5 + 4) + 2 + 1);
}

TEST_F(GradientTest, PassesAddUp) {
  const Team team(world_, 1, {1, 1, 1, moecclOrderEspEp});
  Parameters parameters(team);
  Model model(team, parameters, config_, moecclScheduleBaseline);
  parameters.allocate();
  model.initialise(parameters);
  model.bind();
  loss(model);
  std::vector<std::vector<Real>> once;
  for (std::int64_t i = 0; i < parameters.count(); ++i) {
    const Parameter& parameter = parameters.at(i);
    once.emplace_back(parameter.gradient, parameter.gradient + parameter.part.size());
  }
  loss(model);
  for (std::int64_t i = 0; i < parameters.count(); ++i)
    for (std::int64_t j = 0; j < parameters.at(i).part.size(); ++j)
      EXPECT_NEAR(parameters.at(i).gradient[j], 2 * once[i][j], 1e-5 * std::abs(once[i][j]) + 1e-6)
          << parameters.at(i).name << " " << j;
}

TEST(Learn, DivergesFromAnotherTeacherAlone) {
  std::vector<Real> logits = {1, 2, 4, 0.5, 0.5, -3}, teacher = logits;
  softmax(teacher.data(), 2, 3);
  EXPECT_NEAR(teacher[0] + teacher[1] + teacher[2], 1, 1e-6);
  EXPECT_NEAR(teacher[2] / teacher[1], std::exp(2.0), 1e-5);
  const std::vector<std::int32_t> targets = {2, 0};
  std::vector<Real> same = logits;
  EXPECT_NEAR(learn(same.data(), {targets.data(), teacher.data(), 1}, 2, 3, 1).divergence, 0, 1e-6);
  // Two equal logits and one far below: whoever is sure of the first costs log 2.
  std::vector<Real> equal = {0, 0, -100};
  const std::vector<Real> sure = {1, 0, 0};
  const Losses losses = learn(equal.data(), {targets.data() + 1, sure.data(), 2}, 1, 3, 1);
  EXPECT_NEAR(losses.divergence, std::log(2.0), 1e-6);
  EXPECT_NEAR(losses.crossEntropy, std::log(2.0), 1e-6);
  EXPECT_NEAR(equal[0], -0.5 + 2 * -0.5, 1e-6);
  EXPECT_NEAR(equal[1], 0.5 + 2 * 0.5, 1e-6);
}

TEST(Random, HasTheMomentsOfANormalDistributionAndOfItsIndexAlone) {
  const Random random(1, "weights"), same(1, "weights"), other(1, "weight"), seeded(2, "weights");
  constexpr int kCount = 100000;
  double sum = 0, squares = 0, along = 0;
  std::set<Real> different;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.normal(i);
    sum += value;
    squares += value * value;
    along += value * random.normal(i + 1);
    different.insert(random.normal(i));
  }
  // Five deviations of what would be exact for infinitely many.
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(along / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_GT(different.size(), kCount * 0.99);
  EXPECT_EQ(random.normal(7), same.normal(7));
  EXPECT_NE(random.normal(7), other.normal(7));
  EXPECT_NE(random.normal(7), seeded.normal(7));
}

}  // namespace
}  // namespace train
