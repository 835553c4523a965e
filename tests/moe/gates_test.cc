// The gates in the layer, ranks as threads: every schedule decides as the single-process reference
// does, with the same bits, and what is random does not depend on the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "tests/moe/on_layer.h"

namespace moeccl::test {
namespace {

class EveryGate : public testing::TestWithParam<int> {
 protected:
  static moecclMoeGate_t gate() { return static_cast<moecclMoeGate_t>(GetParam()); }
  // One whose output shows every choice's weight.
  static Problem probe(const moecclGridShape_t& grid) {
    Problem problem;
    problem.name = "probe";
    problem.grid = grid;
    problem.gate = gate();
    problem.probe = true;
    problem.training = true;
    problem.embedding = problem.experts;
    problem.choices = gate() == moecclGateSwitch ? 1 : 2;
    return problem;
  }
};

moe_reference::Elements forward(moecclMoeLayer_t layer, const moe_reference::Elements& input) {
  moe_reference::Elements output(input.size());
  check(moecclMoeForward(layer, input.data(), output.data(), nullptr));
  return output;
}
moe_reference::Elements forward(const LayerRank& rank) { return forward(rank.layer, rank.input); }

moecclMoeStats_t statsOf(const LayerRank& rank) {
  moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  check(moecclMoeGetStats(rank.layer, &stats));
  return stats;
}

TEST(Gates, ProblemsAreAsHardAsTheySay) {
  std::array<int, moecclNumGates> dropping{}, droppingOnAll{}, idle{}, random{};
  for (const Problem& problem : layers()) {
    const auto expected = solve(problem).expected[0];
    const bool drops = 4 * expected.placeless.size() > expected.chosen.size();
    dropping[problem.gate] += drops;
    droppingOnAll[problem.gate] += drops && problem.grid.nMp == 16;  // PPMoE too
    idle[problem.gate] += std::ranges::count(expected.assigned, 0) > 0;
    random[problem.gate] += problem.training;
  }
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    SCOPED_TRACE(gate);
    if (gate != moecclGateExpertChoice) {  // whose experts fill all places
      EXPECT_GE(dropping[gate], 2);
      EXPECT_GE(droppingOnAll[gate], 1);
      EXPECT_GE(idle[gate], 1);
    }
    EXPECT_GE(random[gate], 2);
  }
}

TEST_P(EveryGate, HasTheSameBitsUnderEverySchedule) {
  for (double factor : {0.4, 1.1})
    for (int nMp : {2, 6}) {
      Problem problem = probe({nMp, 2, 3, moecclOrderEpEsp});
      problem.tokens = 19;
      problem.capacityFactor = factor;
      for (moecclDataType_t datatype : {moecclFloat32, moecclFloat64}) {
        problem.datatype = datatype;
        expectAllSchedules(problem);
      }
    }
}

TEST_P(EveryGate, DrawsTheSameOnAnyNumberOfRanks) {
  Outcome first;
  for (const moecclGridShape_t& grid :
       {moecclGridShape_t{1, 1, 1, moecclOrderEspEp}, moecclGridShape_t{2, 2, 1, moecclOrderEspEp},
        moecclGridShape_t{4, 2, 2, moecclOrderEspEp}, moecclGridShape_t{8, 2, 4, moecclOrderEspEp},
        moecclGridShape_t{16, 4, 4, moecclOrderEspEp}}) {
    Problem problem = probe(grid);
    problem.tokens = 29;
    problem.capacityGroups = 16;
    problem.capacityFactor = 0.6;
    const Solved solved = solve(problem);
    for (moecclSchedule_t schedule : {moecclScheduleS1, moecclScheduleS2}) {
      const Outcome outcome = runLayer(problem, solved, {.schedule = schedule})[0];
      if (first.output.empty()) first = outcome;
      EXPECT_EQ(outcome.output, first.output) << problem.text();
      EXPECT_EQ(outcome.assigned, first.assigned) << problem.text();
      EXPECT_EQ(outcome.kept, first.kept) << problem.text();
    }
  }
}

TEST_P(EveryGate, CountsStepsInTraining) {
  const Problem problem = probe({2, 2, 2, moecclOrderEspEp});
  const bool chance = gate() == moecclGateSwitch || gate() == moecclGateNoisyTopK;
  const Solved solved = solve(problem);
  onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& rank) {
    const moe_reference::Elements zeroth = forward(rank), one = forward(rank), two = forward(rank);
    checkThat(!chance || (zeroth != one && one != two), "the same noise twice");
    checkThat(chance || gate() == moecclGateGShard || (zeroth == one && one == two), "noise");
    check(moecclMoeLayerSetStep(rank.layer, 1));
    checkThat(forward(rank) == one && forward(rank) == two, "other noise when resumed");
    check(moecclMoeLayerSetStep(rank.layer, 0));
    checkThat(forward(rank) == zeroth, "other noise in step 0");
  });
}

// What four ranks take at once, two take in two passes, and one in four.
TEST_P(EveryGate, DrawsTheSameForBatchesOneAfterTheOther) {
  constexpr int kBatches = 4;
  for (const std::int64_t residual : {0, 3}) {
    std::vector<std::vector<double>> inputs;
    std::vector<std::vector<double>> first;
    for (const int groups : {4, 2, 1}) {
      Problem problem = probe({1, groups, 1, moecclOrderEspEp});
      problem.residual = residual;
      problem.probe = residual == 0;
      const Solved solved = solve(problem);
      if (groups == kBatches) inputs = solved.inputs;
      std::vector<std::vector<double>> outputs(kBatches);
      onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& rank) {
        for (int batch = 0; batch < kBatches; batch += groups) {
          const auto mine = static_cast<std::size_t>(batch + rank.rank);
          check(moecclMoeLayerSetStep(rank.layer, 3));
          check(moecclMoeLayerSetFirstBatch(rank.layer, batch));
          const auto input = moe_reference::encode(problem.datatype, inputs[mine]);
          outputs[mine] = moe_reference::decode(problem.datatype, forward(rank.layer, input));
        }
      });
      if (groups == kBatches) first = outputs;
      for (std::size_t batch = 0; batch < kBatches; ++batch)
        EXPECT_LE(moe_reference::largestError(outputs[batch], first[batch]),
                  toleranceOf(problem.datatype))
            << groups << " groups, batch " << batch;
    }
  }
}

// Batches of equal tokens draw numbers of their own.
TEST_P(EveryGate, DrawsForEachGroupByItself) {
  const Problem problem = probe({1, 2, 1, moecclOrderEspEp});
  Solved solved = solve(problem);
  solved.inputs[1] = solved.inputs[0];
  std::vector<moe_reference::Elements> outputs(2);
  onLayer(problem, solved, moecclScheduleAuto,
          [&](const LayerRank& rank) { outputs[rank.rank] = forward(rank); });
  const bool chance = gate() == moecclGateSwitch || gate() == moecclGateNoisyTopK;
  if (gate() != moecclGateGShard) {
    EXPECT_EQ(outputs[0] != outputs[1], chance);
  }
}

TEST_P(EveryGate, IsNotRandomInInference) {
  Problem problem = probe({2, 2, 2, moecclOrderEspEp});
  problem.training = false;
  const Solved solved = solve(problem);
  onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& rank) {
    const moe_reference::Elements first = forward(rank);
    checkThat(forward(rank) == first, "noise in inference");
  });
}

std::string gateOf(const testing::TestParamInfo<int>& info) {
  constexpr std::array kNames = {"Softmax", "NoisyTopK",    "GShard",
                                 "Switch",  "ExpertChoice", "Sigmoid"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(, EveryGate, testing::Range(0, static_cast<int>(moecclNumGates)), gateOf);

Problem biased() {
  Problem problem;
  problem.name = "bias";
  problem.gate = moecclGateSigmoid;
  problem.grid = {2, 3, 2, moecclOrderEspEp};
  problem.tokens = 23;
  problem.training = true;
  return problem;
}

TEST(Bias, FollowsTheChoicesOfAllRanksSinceTheLastUpdate) {
  const Problem problem = biased();
  const Solved solved = solve(problem);
  std::vector<double> expected(problem.experts, 1.0), counts(problem.experts);
  for (const auto& batch : solved.expected)
    for (std::int64_t e = 0; e < problem.experts; ++e)
      counts[e] += static_cast<double>(batch.assigned[e]);
  const double mean =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(problem.experts);
  for (std::int64_t e = 0; e < problem.experts; ++e)
    expected[e] += counts[e] < mean ? 0.125 : counts[e] > mean ? -0.125 : 0;
  ASSERT_NE(expected, std::vector<double>(problem.experts, 1.0));
  onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& rank) {
    std::vector<double> bias(problem.experts, 1.0);
    check(moecclMoeUpdateBias(rank.layer, bias.data(), 0.125));
    checkThat(bias == std::vector<double>(problem.experts, 1.0), "a change without choices");
    forward(rank);
    forward(rank);
    check(moecclMoeUpdateBias(rank.layer, bias.data(), 0.125));
    checkThat(bias == expected, "not the bias of these choices");
    check(moecclMoeUpdateBias(rank.layer, bias.data(), 0.125));
    checkThat(bias == expected, "choices counted twice");
  });
}

// The bias that the layer reads is the one that is updated: the load becomes more even.
TEST(Bias, EvensTheLoad) {
  Problem problem = biased();
  problem.hotGate = 1;
  problem.tokens = 60;
  Solved solved = solve(problem);
  onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& rank) {
    std::vector<double> bias(problem.experts, 0.0);
    moe_reference::Shard& shard = rank.shard;
    shard.weights.bias = bias.data();
    check(moecclMoeLayerSetWeights(rank.layer, &shard.weights));
    forward(rank);
    const double before = statsOf(rank).imbalance;
    for (int step = 0; step < 60; ++step) {
      check(moecclMoeUpdateBias(rank.layer, bias.data(), 0.02));
      forward(rank);
    }
    const double after = statsOf(rank).imbalance;
    checkThat(before > 2 && after < 0.8 * before,
              "imbalance " + std::to_string(before) + ", then " + std::to_string(after));
  });
}

}  // namespace
}  // namespace moeccl::test
