// What the gates decide, against the reference of layers; that it does not depend on how a batch is
// cut; edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/capacity.h"
#include "kernels/gates/gshard.h"
#include "kernels/gates/logits.h"
#include "kernels/gates/softmax.h"
#include "tests/kernels/gates_reference.h"

namespace moeccl::gates {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Element>
bool sameBits(const std::vector<Element>& a, const std::vector<Element>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0);
}

// With expertChoice only the choices that were made.
template <typename Real>
std::vector<Choice> choicesOf(const Batch& batch, const Pass<Real>& run, std::int64_t token) {
  std::vector<Choice> choices;
  for (std::int64_t c = 0; c < width(batch.config); ++c) {
    const std::int64_t at = token * width(batch.config) + c;
    if (run.chosen[at] >= 0)
      choices.push_back({run.chosen[at], static_cast<double>(run.weights[at])});
    else
      EXPECT_EQ(run.weights[at], 0) << "token " << token << " choice " << c;
  }
  return choices;
}

template <typename Real>
void compareWithReference(const Batch& batch, double tolerance) {
  SCOPED_TRACE(batch.name);
  const ReferenceResult expected = referenceGate<Real>(batch);
  const Pass<Real> run(batch, 1, {batch.config.batchTokens});
  for (std::int64_t t = 0; t < batch.config.batchTokens; ++t) {
    const std::vector<Choice> choices = choicesOf(batch, run, t);
    ASSERT_EQ(choices.size(), expected.tokens[t].size()) << "token " << t;
    for (std::size_t c = 0; c < choices.size(); ++c) {
      ASSERT_EQ(choices[c].expert, expected.tokens[t][c].expert)
          << "token " << t << " choice " << c;
      ASSERT_NEAR(choices[c].weight, expected.tokens[t][c].weight, tolerance)
          << "token " << t << " choice " << c;
    }
  }
  for (std::int32_t e = 0; e < batch.config.experts; ++e)
    ASSERT_EQ(run.sums[e], expected.assigned[e]) << "expert " << e;
  ASSERT_NEAR(run.loss, expected.loss, 1e-12 * std::max(1.0, expected.loss));
}

TEST(Gates, DecideAsTheReferenceDoes) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    ASSERT_EQ(problem(config), "");
    Batch batch = batchOf(config, seed++);
    for (bool random : {true, false}) {
      if (!random) batch.draw.reset();
      compareWithReference<float>(batch, 1e-6);
      // Jittered inputs are rounded to Real, and the reference rounds to float.
      if (config.jitter == 0) compareWithReference<double>(batch, 1e-12);
      if (HasFatalFailure()) return;
    }
  }
}

// Where sums are exact and the loops' order therefore known.
TEST(Gates, EqualExpertsAreChosenByRisingNumber) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    if (config.kind == Kind::expertChoice || config.expertGroups > 1) continue;
    Batch batch = batchOf(config, seed++, Values::few);
    batch.draw.reset();
    compareWithReference<double>(batch, 1e-12);
    if (HasFatalFailure()) return;
    std::fill(batch.gate.begin(), batch.gate.end(), 0.25);
    std::fill(batch.bias.begin(), batch.bias.end(), 0.0);
    const Pass<float> run(batch, 1, {config.batchTokens});
    for (std::size_t at = 0; at < run.chosen.size(); ++at)
      ASSERT_EQ(run.chosen[at], static_cast<std::int32_t>(at % config.choices)) << batch.name;
  }
}

TEST(Gates, EqualGroupsAreKeptByRisingNumber) {
  Config config{Kind::sigmoid, 3, 7, 8, 4, 3, 2};
  config.expertGroups = 4;
  config.topGroups = 2;
  Batch batch = batchOf(config, 1);
  std::fill(batch.gate.begin(), batch.gate.end(), 0.25);
  batch.bias = {0, 0, 0, 0, 0, 0, 0.5, 0.5};  // the last group is the best
  const Pass<float> run(batch, 1, {3});
  EXPECT_EQ(run.chosen, (std::vector<std::int32_t>{6, 7, 0, 1, 6, 7, 0, 1, 6, 7, 0, 1}));
}

TEST(Gates, OfEqualTokensExpertsTakeTheEarlier) {
  const Config config{Kind::expertChoice, 7, 5, 2, 0, 4, 3};
  Batch batch = batchOf(config, 1);
  for (std::size_t i = 0; i < batch.input.size(); ++i) batch.input[i] = batch.input[i % 5];
  const Pass<float> run(batch, 1, {7});
  EXPECT_EQ(run.slots, (std::vector<std::int64_t>{0, 0, 1, 1, 2, 2, -1, -1, 3, 3, 4, 4, 5, 5}));
  EXPECT_EQ(run.used, (std::vector<std::int64_t>{3, 3, 3, 3}));
}

// Those of a CPU with vectors and of one without, in any number of tokens and experts.
template <typename Real>
void logitsAreChains(std::int64_t embedding, std::int64_t experts) {
  std::mt19937 random(static_cast<unsigned>(embedding * 100 + experts));
  const auto draw = [&](std::int64_t count) {
    std::vector<Real> values(count);
    for (Real& value : values) value = std::uniform_real_distribution<Real>(-1, 1)(random);
    return values;
  };
  const std::vector<Real> inputs = draw(kTileTokens * embedding), gate = draw(embedding * experts);
  std::vector<double> expected(kTileTokens * experts), wide(expected), narrow(expected);
  for (std::int64_t at = 0; at < kTileTokens * experts; ++at) {
    Real chain = 0;
    for (std::int64_t m = 0; m < embedding; ++m) {
      chain =
          std::fma(inputs[at / experts * embedding + m], gate[m * experts + at % experts], chain);
      if (m % 32 < 31 && m + 1 < embedding) continue;
      expected[at] += chain;
      chain = 0;
    }
  }
  LogitsRows<Real> rows{{}, gate.data(), embedding, experts, {}};
  const auto into = [&](std::vector<double>& logits) {
    for (int t = 0; t < kTileTokens; ++t) {
      rows.inputs[t] = inputs.data() + t * embedding;
      rows.logits[t] = logits.data() + t * experts;
    }
    return rows;
  };
  computeLogits(into(wide));
  LogitsKernel::run(into(narrow));
  EXPECT_TRUE(sameBits(wide, expected)) << embedding << " x " << experts;
  EXPECT_TRUE(sameBits(narrow, expected)) << embedding << " x " << experts;
}

TEST(Gates, LogitsAreChains) {
  for (std::int64_t embedding : {1, 31, 32, 33, 64, 200})
    for (std::int64_t experts : {1, 3, 4, 7, 8, 16, 21, 37}) {
      logitsAreChains<float>(embedding, experts);
      logitsAreChains<double>(embedding, experts);
    }
}

// Parts of one token, of many, and of none.
TEST(Gates, ABatchMayBeCutAnywhere) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    const Batch batch = batchOf(config, seed++);
    const std::int64_t tokens = config.batchTokens;
    const Pass<float> whole(batch, 1, {tokens});
    std::vector<std::vector<std::int64_t>> cuts = {{0, tokens / 2, tokens, tokens},
                                                   {tokens / 3, tokens / 3, tokens}};
    cuts.emplace_back(tokens);
    std::iota(cuts.back().begin(), cuts.back().end(), 1);
    for (const std::vector<std::int64_t>& ends : cuts) {
      const Pass<float> parts(batch, 1, ends);
      ASSERT_TRUE(sameBits(parts.logits, whole.logits)) << batch.name;
      ASSERT_TRUE(sameBits(parts.chosen, whole.chosen)) << batch.name;
      ASSERT_TRUE(sameBits(parts.weights, whole.weights)) << batch.name;
      ASSERT_TRUE(sameBits(parts.slots, whole.slots)) << batch.name;
      ASSERT_TRUE(sameBits(parts.used, whole.used)) << batch.name;
      // Sums are added in another order.
      ASSERT_NEAR(parts.loss, whole.loss, 1e-13 * std::max(1.0, whole.loss)) << batch.name;
      for (std::size_t i = 0; i < whole.sums.size(); ++i)
        ASSERT_NEAR(parts.sums[i], whole.sums[i], 1e-12) << batch.name;
    }
  }
}

TEST(Gates, OtherSeedsStepsAndBatchesChooseOtherwise) {
  for (Kind kind : {Kind::softmax, Kind::noisy, Kind::gshard}) {
    Config config{kind, 100, 6, 8, 2, 100, 100};
    config.jitter = 0.5;
    Batch batch = batchOf(config, 1);
    const Pass<float> one(batch, 1, {100});
    for (const Draw& draw : {Draw{2, 3, 1}, Draw{1, 4, 1}, Draw{1, 3, 2}}) {
      batch.draw = draw;
      EXPECT_FALSE(sameBits(one.weights, Pass<float>(batch, 1, {100}).weights));
    }
    batch.draw.reset();
    EXPECT_FALSE(sameBits(one.weights, Pass<float>(batch, 1, {100}).weights));
  }
}

// Two experts whose logits make g2 = 1/4: it is to be taken half of the time.
TEST(Gates, GshardTakesSecondExpertsInProportion) {
  constexpr int kTokens = 20000;
  const Config config{Kind::gshard, kTokens, 1, 2, 2, kTokens, kTokens};
  Batch batch = batchOf(config, 1);
  batch.gate = {static_cast<float>(std::log(3.0)), 0};
  std::fill(batch.input.begin(), batch.input.end(), 1.0);
  const Pass<float> run(batch, 1, {kTokens});
  EXPECT_EQ(run.sums[0], kTokens);
  EXPECT_NEAR(run.sums[1], kTokens / 2.0, 4 * std::sqrt(kTokens / 4.0));
}

// A choice that is not taken uses no place: later second choices get it.
TEST(Gates, AbsentChoicesTakeNoPlace) {
  const std::vector<std::int32_t> chosen = {0, -1, 0, 1, 0, 1, 1, 0};
  std::vector<std::int64_t> slots(8, -7), used(2, -7);
  assignSlots({2, 2, 4, 2}, chosen.data(), 4, 1, used.data(), slots.data());
  EXPECT_EQ(slots, (std::vector<std::int64_t>{0, -1, 1, 1, -1, -1, 0, -1}));
  EXPECT_EQ(used, (std::vector<std::int64_t>{2, 2}));
}

TEST(Gates, CountKeptChoices) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    const Batch batch = batchOf(config, seed++);
    const Pass<float> run(batch, 1, {config.batchTokens});
    std::vector<double> kept(config.experts);
    for (std::size_t at = 0; at < run.slots.size(); ++at) {
      if (run.slots[at] < 0) continue;
      ASSERT_GE(run.chosen[at], 0);
      kept[run.chosen[at]] += 1;
    }
    for (std::int32_t e = 0; e < config.experts; ++e)
      ASSERT_EQ(run.sums[config.experts + e], kept[e]) << batch.name;
  }
}

TEST(Gates, BadNumbersStillGiveValidChoices) {
  unsigned seed = 1;
  for (const Config& config : everyConfig())
    for (double bad : {kNan, kInfinity, -kInfinity}) {
      Batch batch = batchOf(config, seed++);
      for (std::size_t i = 0; i < batch.input.size(); i += 5) batch.input[i] = bad;
      for (bool inGate : {false, true}) {
        if (inGate) batch.gate[0] = bad;
        Pass<float> run(batch, 1, {config.batchTokens});
        for (std::int64_t t = 0; t < config.batchTokens; ++t) {
          const std::vector<Choice> choices = choicesOf(batch, run, t);
          std::vector<bool> seen(config.experts);
          for (const Choice& choice : choices) {
            ASSERT_LT(choice.expert, config.experts) << batch.name;
            ASSERT_FALSE(seen[choice.expert]) << batch.name;
            seen[choice.expert] = true;
          }
          // All but one of these gates choose the same number of experts for each token.
          if (config.kind != Kind::gshard && config.kind != Kind::expertChoice) {
            ASSERT_EQ(choices.size(), config.choices) << batch.name;
          }
        }
        run.backward(batch, std::vector<float>(run.weights.size(), 1.0f), {config.batchTokens});
      }
    }
}

TEST(Gates, ExtremeLogitsStayFinite) {
  unsigned seed = 1;
  for (const Config& config : everyConfig())
    for (float size : {1e3f, 1e30f}) {
      Batch batch = batchOf(config, seed++);
      for (double& value : batch.gate) value = -size * static_cast<float>(std::fabs(value));
      for (double& value : batch.noise) value = size * static_cast<float>(value);
      for (double& value : batch.input) value = std::fabs(value);
      Pass<float> run(batch, 1, {config.batchTokens});
      run.backward(batch, std::vector<float>(run.weights.size(), 0.0f), {config.batchTokens});
      for (float weight : run.weights) ASSERT_TRUE(std::isfinite(weight)) << batch.name;
      ASSERT_TRUE(std::isfinite(run.loss)) << batch.name;
      for (float gradient : run.dInput) ASSERT_FALSE(std::isnan(gradient)) << batch.name;
    }
}

TEST(Gates, UpdateBiasEvensTheLoad) {
  std::vector<double> bias = {0.5, 0, 0, -1};
  updateBias(std::vector<double>{9, 1, 5, 5}.data(), 4, 0.25, bias.data());
  EXPECT_EQ(bias, (std::vector<double>{0.25, 0.25, 0, -1}));
  updateBias(std::vector<double>{0, 0, 0, 0}.data(), 4, 0.25, bias.data());
  EXPECT_EQ(bias, (std::vector<double>{0.25, 0.25, 0, -1}));
  double alone = 3;
  updateBias(std::vector<double>{12}.data(), 1, 0.25, &alone);
  EXPECT_EQ(alone, 3);
}

// Sizes of as many experts as a config may have are no int.
TEST(Gates, ScratchOfManyExperts) {
  Config config;
  config.experts = std::numeric_limits<std::int32_t>::max();
  const std::int64_t experts = config.experts;
  EXPECT_EQ(SoftmaxRule::doubles(config), 2 * experts);
  EXPECT_EQ(GshardRule::doubles(config), 2 * experts);
}

TEST(Gates, ProblemsAreNamed) {
  const Config good{Kind::sigmoid, 8, 4, 6, 2, 4, 2};
  EXPECT_EQ(problem(good), "");
  const auto expect = [&](Kind kind, auto change, const std::string& text) {
    Config config = good;
    config.kind = kind;
    change(config);
    EXPECT_EQ(problem(config), text);
  };
  using C = Config&;
  expect(
      Kind::sigmoid, [](C c) { c.expertGroups = 4; },
      "expertGroups is 4; it must be a divisor of the number of experts, 6");
  expect(
      Kind::sigmoid, [](C c) { c.expertGroups = 0; }, "expertGroups is 0; it must be from 1 to 6");
  expect(
      Kind::sigmoid, [](C c) { c.expertGroups = 3, c.topGroups = 4; },
      "topGroups is 4; it must be from 1 to expertGroups, 3");
  expect(
      Kind::sigmoid, [](C c) { c.expertGroups = 3, c.choices = 3; },
      "choices is 3; it must be at most the number of experts in topGroups groups, 2");
  expect(
      Kind::sigmoid, [](C c) { c.routingScale = 0; },
      "routingScale is 0; it must be a finite number above 0");
  expect(
      Kind::sigmoid, [](C c) { c.sequenceTokens = -1; },
      "sequenceTokens is -1; it must be at least 0");
  expect(
      Kind::softmax, [](C c) { c.jitter = 1.5; }, "jitter is 1.5; it must be from 0 to 1");
  expect(
      Kind::softmax, [](C c) { c.jitter = NAN; }, "jitter is nan; it must be from 0 to 1");
  expect(
      Kind::softmax, [](C c) { c.choices = 7; }, "choices is 7; it must be from 1 to 6");
  expect(
      Kind::softmax, [](C c) { c.experts = 0; }, "experts is 0; it must be from 1 to 2147483647");
  expect(
      Kind::softmax, [](C c) { c.embedding = 0; },
      "embedding is 0; it must be from 1 to 2147483647");
  expect(
      Kind::softmax, [](C c) { c.batchTokens = -1; }, "batchTokens is -1; it must be at least 0");
  expect(
      Kind::softmax, [](C c) { c.capacityTokens = -1; },
      "capacityTokens is -1; it must be at least 0");
  expect(
      Kind::softmax, [](C c) { c.capacitySlots = -1; },
      "capacitySlots is -1; it must be at least 0");
  expect(
      Kind::gshard, [](C c) { c.choices = 1; }, "choices is 1; it must be 2 for the gate gshard");
  expect(
      Kind::gshard, [](C c) { c.experts = 1; }, "choices is 2; it must be from 1 to 1");
  expect(
      Kind::noisy, [](C c) { c.loadWeight = -1; },
      "loadWeight is -1; it must be a finite number, 0 or more");
  expect(
      Kind::noisy, [](C c) { c.importanceWeight = kInfinity; },
      "importanceWeight is inf; it must be a finite number, 0 or more");
  expect(
      Kind::expertChoice, [](C c) { c.choices = 0; }, "");
  expect(
      static_cast<Kind>(9), [](C) {}, "kind is 9; it must be a gate's");
}

}  // namespace
}  // namespace moeccl::gates
