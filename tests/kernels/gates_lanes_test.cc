// The rules of gates by several lanes, and what thread blocks of a GPU do around them, against the CPU's gate.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "kernels/gates/logits_tile.h"
#include "kernels/gates/passes.h"
#include "tests/kernels/gates_plain.h"
#include "tests/kernels/threads_as_lanes.h"

namespace moeccl::gates {
namespace {

void expectClose(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-5 * std::max(1.0f, std::fabs(b[i]))) << what << " " << i;
}

void expectClose(const std::vector<double>& a, const std::vector<double>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-9 * std::max(1.0, std::fabs(b[i]))) << what << " " << i;
}

// One part of a batch, by kLanes lanes, as the kernels of gate_cuda.cu do it.
template <int kLanes, typename Rule>
struct LanesPass {
  const Batch& batch;
  const Config& config = batch.config;
  GatePass pass;
  std::vector<double> doubles, rowSums, sums;
  std::vector<std::int32_t> ints, chosen;
  std::vector<float> weights, dGate, dNoise;

  LanesPass(const Batch& batch, const std::vector<double>& logits, std::int64_t first,
            std::int64_t tokens)
      : batch(batch),
        pass{config,
             tokenRows(config, first, tokens),
             width(config),
             logitsPerToken(config),
             logits.data() + first * logitsPerToken(config),
             batch.bias.empty() ? nullptr : batch.bias.data(),
             batch.draw.has_value(),
             Random(batch.draw.value_or(Draw{}))},
        doubles(warpDoubles<Rule>(config), -7),
        rowSums(mostTokenRows(config, tokens) * 3 * config.experts, -7),
        sums(sumsSize(config)),
        ints(Rule::ints(config)),
        chosen(tokens * pass.width, -7),
        weights(chosen.size(), -7),
        dGate(tokens * config.experts, -7),
        dNoise(dGate) {}

  WarpMemory memory() {
    double* const own = doubles.data() + Rule::doubles(config);
    return {{doubles.data(), ints.data()}, own, own + pass.width};
  }

  void forward() {
    EXPECT_LE(pass.rows.count(), mostTokenRows(config, pass.rows.tokens));
    onLanes<kLanes>([&](const auto& lanes) {
      for (std::int64_t row = 0; row < pass.rows.count(); ++row)
        chooseRow<Rule>(lanes, pass, memory(), row, chosen.data(), weights.data(),
                        rowSums.data() + row * 3 * config.experts);
      for (std::int64_t i = 0; i < rowSumItems(pass.rows, config.experts); ++i)
        addRows(lanes, pass.rows, config.experts, rowSums.data(), i, sums.data());
    });
  }

  void place(std::int64_t groups, std::int64_t* used, std::int64_t* slots) {
    onLanes<kLanes>([&](const auto& lanes) {
      for (std::int64_t i = 0; i < groups * config.experts; ++i)
        chooseTokens(lanes, config, pass.rows.tokens, i / config.experts, i % config.experts,
                     chosen.data(), weights.data(), used, slots);
    });
  }

  void backward(const std::vector<float>& dWeights, const std::vector<double>& dSums) {
    onLanes<kLanes>([&](const auto& lanes) {
      for (std::int64_t token = 0; token < pass.rows.tokens; ++token)
        differentiateToken<Rule>(lanes, pass, memory(), pass.rows.first + token, chosen.data(),
                                 dWeights.data(), dSums.data(), dGate.data(), dNoise.data());
    });
  }
};

// As the gate's backward has it: from the gradients of the logits.
void expectGradients(const Batch& batch, const std::vector<float>& dGate,
                     const std::vector<float>& dNoise, const Pass<float>& expected) {
  const std::int64_t experts = batch.config.experts, embedding = batch.config.embedding;
  if (batch.draw && hasJitter(batch.config)) return;  // products of other inputs
  std::vector<float> input(expected.dInput.size());
  for (std::int64_t t = 0; t < batch.config.batchTokens; ++t)
    for (std::int64_t m = 0; m < embedding; ++m) {
      double sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        sum += dGate[t * experts + e] * batch.gate[m * experts + e];
        if (batch.config.kind == Kind::noisy)
          sum += dNoise[t * experts + e] * batch.noise[m * experts + e];
      }
      input[t * embedding + m] = static_cast<float>(sum);
    }
  expectClose(input, expected.dInput, "gradient of the input");
}

template <int kLanes>
void compare(const Batch& batch, unsigned seed) {
  SCOPED_TRACE(batch.name);
  const Config& config = batch.config;
  const std::int64_t tokens = config.batchTokens;
  Pass<float> expected(batch, 0.7, {tokens});
  withRule(config.kind, [&]<typename Rule>(Rule) {
    LanesPass<kLanes, Rule> run(batch, expected.logits, 0, tokens);
    run.forward();
    std::vector<std::int64_t> used(expected.used.size(), -7), slots(expected.slots.size(), -7);
    if (config.kind == Kind::expertChoice) {
      const auto groups = static_cast<std::int64_t>(used.size()) / config.experts;
      run.place(groups, used.data(), slots.data());
      ASSERT_EQ(used, expected.used);
      ASSERT_EQ(slots, expected.slots);
    }
    ASSERT_EQ(run.chosen, expected.chosen);
    expectClose(run.weights, expected.weights, "weight");
    if (testing::Test::HasFatalFailure()) return;
    for (std::int32_t e = 0; e < 2 * config.experts; ++e)
      if (e >= config.experts || config.kind == Kind::expertChoice) run.sums[e] = expected.sums[e];
    expectClose(run.sums, expected.sums, "sum");

    std::vector<double> dSums(run.sums.size());
    double loss = -7;
    onLanes<kLanes>([&](const auto& lanes) {
      double* const terms = dSums.data() + 2 * config.experts;
      const double value =
          tokens == 0 ? 0
                      : Rule::loss(lanes, config, run.sums.data() + 2 * config.experts, 0.7, terms);
      if (lanes.index() == 0) loss = value;
    });
    EXPECT_NEAR(loss, expected.loss, 1e-9 * std::max(1.0, expected.loss));
    expectClose(dSums, expected.dSums, "gradient of a sum");
    if (testing::Test::HasFatalFailure()) return;

    std::mt19937 random(seed);
    std::vector<float> dWeights(run.weights.size());
    for (float& value : dWeights) value = std::uniform_real_distribution<float>(-1, 1)(random);
    run.backward(dWeights, expected.dSums);
    expected.backward(batch, dWeights, {tokens});
    expectGradients(batch, run.dGate, run.dNoise, expected);
  });
}

TEST(GatesLanes, LanesTogetherDecideAndDifferentiateAsOneDoes) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    if (config.batchTokens * config.experts > 4000) continue;
    Batch batch = batchOf(config, seed++);
    compare<1>(batch, seed);
    if (seed % 8 == 0) compare<3>(batch, seed);
    if (HasFatalFailure()) return;
  }
}

TEST(GatesLanes, OfEqualExpertsAndTokensTheFirst) {
  unsigned seed = 1;
  for (const Config& config : everyConfig()) {
    if (config.batchTokens * config.experts > 120 || ++seed % 2 == 0) continue;
    compare<3>(batchOf(config, seed, Values::few), seed);
    if (HasFatalFailure()) return;
  }
}

// Wherever a part begins and ends, and whatever sequences it cuts.
TEST(GatesLanes, RowsOfTokensAreWholeAndInOneSection) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Config config{};
    config.kind = Kind::sigmoid;
    config.batchTokens = random() % 300;
    config.sequenceTokens = random() % 3 == 0 ? 0 : random() % 60 + 1;
    const std::int64_t first = random() % (config.batchTokens + 1);
    const std::int64_t tokens = random() % (config.batchTokens - first + 1);
    const TokenRows rows = tokenRows(config, first, tokens);
    ASSERT_LE(rows.count(), mostTokenRows(config, tokens));
    std::int64_t next = first;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      ASSERT_EQ(rows.begin(row), next);
      next = rows.end(row);
      ASSERT_GT(next, rows.begin(row));
      ASSERT_LE(next - rows.begin(row), TokenRows::kTokens);
      const std::int64_t section = rows.begin(row) / rows.sectionTokens;
      ASSERT_EQ((next - 1) / rows.sectionTokens, section);
      ASSERT_LE(rows.sectionBegin(section), row);
      ASSERT_GT(rows.sectionBegin(section + 1), row);
    }
    ASSERT_EQ(next, first + tokens);
  }
}

template <typename Tile>
void runTile(const LogitsProblem& problem, std::int64_t token, std::int64_t expert) {
  std::vector<typename Tile::Sums> sums(Tile::kThreads);
  const auto tile = std::make_unique<Tile>();
  for (std::int64_t m = 0; m < problem.embedding; m += Tile::kDepth) {
    for (int thread = 0; thread < Tile::kThreads; ++thread)
      tile->put(Tile::fetch(problem, token, expert, m, thread), thread);
    for (int thread = 0; thread < Tile::kThreads; ++thread) tile->multiply(thread, sums[thread]);
  }
  for (int thread = 0; thread < Tile::kThreads; ++thread)
    Tile::store(problem, token, expert, thread, sums[thread]);
}

TEST(GatesLanes, TilesGiveTheLogitsOfTheCpu) {
  unsigned seed = 1;
  for (std::int32_t experts : {1, 8, 9, 16, 20, 32, 33, 64, 70})
    for (double jitter : {0.0, 0.25}) {
      Config config{Kind::softmax, 131, 77, experts, 1, 131, 131};
      config.jitter = jitter;
      Batch batch = batchOf(config, seed++);
      if (jitter > 0) batch.draw = Draw{5, 6, 7};
      const Pass<float> expected(batch, 1, {config.batchTokens});
      std::vector<double> logits(expected.logits.size(), -7);
      const LogitsProblem problem{expected.input.data(),
                                  expected.gate.data(),
                                  131,
                                  77,
                                  experts,
                                  logits.data(),
                                  experts,
                                  jitter,
                                  0,
                                  Random(batch.draw.value_or(Draw{}))};
      withLogitsTile(experts, [&]<typename Tile>() {
        for (std::int64_t token = 0; token < 131; token += Tile::kTokens)
          for (std::int64_t expert = 0; expert < experts; expert += Tile::kExperts)
            runTile<Tile>(problem, token, expert);
      });
      ASSERT_EQ(std::memcmp(logits.data(), expected.logits.data(), logits.size() * sizeof(double)),
                0)
          << experts << " experts, jitter " << jitter;
    }
}

}  // namespace
}  // namespace moeccl::gates
