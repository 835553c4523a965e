// The layer on real communicators, ranks as threads, against the single-process reference.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/moe/problem.h"

namespace moeccl::test {
namespace {

constexpr moecclGridOrder_t kOrders[] = {moecclOrderEspEp, moecclOrderEpEsp};

// Every grid with EP and ESP groups of 1 to 4 ranks and MP groups of 1 to 4 or all, in both orders; what
// else a layer has changes from grid to grid.
TEST(Grids, AllSchedulesComputeTheReference) {
  std::mt19937 random(7);
  const auto oneOf = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  for (int nEp = 1; nEp <= 4; ++nEp)
    for (int nEsp = 1; nEsp <= 4; ++nEsp)
      for (int nMp : {1, 2, 3, 4, 6, 8, 9, 12, 16})
        for (moecclGridOrder_t order : kOrders) {
          if (nEp * nEsp % nMp != 0 || (nMp > 4 && nMp != nEp * nEsp)) continue;
          Problem problem;
          problem.name = "grid";
          problem.grid = {nMp, nEp, nEsp, order};
          problem.seed = random();
          problem.tokens = oneOf(5, 12, 17, 24, 31);
          problem.choices = oneOf(1, 2, 3);
          problem.capacityFactor = oneOf(0.4, 1.0, 1.7);
          problem.capacityGroups = oneOf(0, 0, nMp, 2 * nMp, nMp + 1);
          problem.activation = oneOf(moecclMoeGelu, moecclMoeRelu);
          problem.data = oneOf(Tokens::random, Tokens::repeated, Tokens::tied);
          problem.biases = oneOf(true, true, false);
          expectAllSchedules(problem);
          if (HasFailure()) return;
        }
}

// The grid of the cases below: MP groups of two that cross the ESP groups of three.
Problem six(const std::string& name) {
  Problem problem;
  problem.name = name;
  problem.grid = {2, 2, 3, moecclOrderEspEp};
  problem.experts = 6;
  problem.tokens = 20;
  return problem;
}

// There, and with an MP group of all six, where PPMoE is offered.
void expectOnBothGrids(Problem problem) {
  expectAllSchedules(problem);
  problem.grid.nMp = problem.ranks();
  expectAllSchedules(problem);
}

TEST(Capacity, NoPlacesToSpeakOf) {
  Problem problem = six("tiny factor");
  problem.capacityFactor = 1e-6;  // one place per group
  expectOnBothGrids(problem);
}

TEST(Capacity, PlacesForAll) {
  Problem problem = six("huge factor");
  problem.capacityFactor = 1e300;
  expectOnBothGrids(problem);
  for (const auto& expected : solve(problem).expected) {
    EXPECT_TRUE(expected.placeless.empty());
    EXPECT_EQ(expected.capacity, problem.tokens);
  }
}

TEST(Capacity, OneHotExpert) {
  Problem problem = six("hot expert");
  problem.hotGate = 3;
  expectOnBothGrids(problem);
  EXPECT_FALSE(solve(problem).expected[0].placeless.empty());
  EXPECT_EQ(solve(problem).expected[0].assigned[1], problem.tokens);
}

TEST(Capacity, ExpertsWithoutTokens) {
  Problem problem = six("hot expert, one choice");
  problem.hotGate = 3;
  problem.choices = 1;
  problem.capacityFactor = 6;
  expectOnBothGrids(problem);
  EXPECT_EQ(solve(problem).expected[0].assigned[0], 0);
}

TEST(Capacity, EveryExpertChosen) {
  Problem problem = six("k = E");
  problem.choices = problem.experts;
  expectOnBothGrids(problem);
  EXPECT_TRUE(solve(problem).expected[0].placeless.empty());
}

TEST(Capacity, GroupsOfOneTokenAndEmptyOnes) {
  Problem problem = six("more groups than tokens");
  problem.tokens = 7;
  problem.capacityGroups = 16;
  expectOnBothGrids(problem);
}

TEST(Capacity, OneGroupThatPartsCut) {
  Problem problem = six("one group");
  problem.capacityGroups = 1;
  problem.capacityFactor = 0.6;
  expectOnBothGrids(problem);
}

// The output shows each choice's place, so kept and dropped choices are compared one by one.
TEST(Capacity, TheSameChoicesAreDropped) {
  for (Tokens data : {Tokens::random, Tokens::repeated, Tokens::tied})
    for (std::int64_t tokens : {1, 19, 64})
      for (double factor : {0.3, 0.8, 1.2}) {
        Problem problem = six("probe");
        problem.data = data;
        problem.tokens = tokens;
        problem.capacityFactor = factor;
        problem.probe = true;
        problem.choices = 3;
        problem.capacityGroups = 4;
        expectOnBothGrids(problem);
        if (HasFailure()) return;
      }
}

TEST(Tokens, NoneAndOne) {
  for (std::int64_t tokens : {0, 1})
    for (moecclGridShape_t grid : {moecclGridShape_t{1, 1, 1, moecclOrderEspEp},
                                   moecclGridShape_t{2, 2, 2, moecclOrderEspEp},
                                   moecclGridShape_t{3, 3, 1, moecclOrderEpEsp},
                                   moecclGridShape_t{4, 2, 2, moecclOrderEspEp}}) {
      Problem problem;
      problem.name = "few tokens";
      problem.tokens = tokens;
      problem.grid = grid;
      expectAllSchedules(problem);
    }
}

TEST(Tokens, MoreRowsThanAnExpertTakesAtOnce) {
  Problem problem = six("many tokens");
  problem.tokens = 601;
  problem.experts = 2;
  expectOnBothGrids(problem);
}

TEST(Forward, ThroughEveryAlgorithm) {
  for (const char* algorithms :
       {"alltoall=linear;allgather=ring;combineallgather=pipelined;splitdispatch=flat",
        "alltoall=pairwise;allgather=linear;combineallgather=sequential;splitdispatch=dedup",
        "alltoall=hierarchical;allreduce=hierarchical"})
    for (int nMp : {2, 6}) {
      Problem problem = six(algorithms);
      problem.grid.nMp = nMp;
      const Solved solved = solve(problem);
      for (moecclSchedule_t schedule : schedulesOf(problem))
        runLayer(problem, solved, {.schedule = schedule, .algorithms = algorithms});
    }
}

TEST(Forward, InPlaceAndOnAStream) {
  for (std::int64_t tokens : {24, 21})
    for (int nMp : {2, 6}) {
      Problem problem = six("in place");
      problem.tokens = tokens;
      problem.grid.nMp = nMp;
      const Solved solved = solve(problem);
      for (moecclSchedule_t schedule : schedulesOf(problem))
        runLayer(problem, solved, {.schedule = schedule, .ownStream = true, .inPlace = true});
    }
}

TEST(Forward, TheSameTwice) {
  Problem problem = six("repeated");
  problem.grid.nMp = problem.ranks();
  for (moecclSchedule_t schedule : schedulesOf(problem)) {
    const Solved solved = solve(problem);
    const auto once = runLayer(problem, solved, {.schedule = schedule, .forwards = 1});
    const auto often = runLayer(problem, solved, {.schedule = schedule, .forwards = 5});
    for (std::size_t rank = 0; rank < once.size(); ++rank)
      EXPECT_EQ(once[rank].output, often[rank].output);
  }
}

// The layer reads the caller's weights anew in every forward.
TEST(Forward, SeesWeightsChangeInPlace) {
  const Problem problem = six("new weights");
  Problem otherProblem = problem;
  otherProblem.seed = 2;
  const Solved solved = solve(problem);
  Solved other = solve(otherProblem);
  other.inputs = solved.inputs;
  for (std::size_t batch = 0; batch < other.inputs.size(); ++batch)
    other.expected[batch] = moe_reference::forward(other.layer, other.inputs[batch].data());
  std::vector<std::vector<float>> outputs(problem.ranks());
  runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = nullptr;
    moecclMoeLayer_t layer = nullptr;
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclGridCreate(comm, problem.grid, &grid));
    check(moecclMoeLayerCreate(grid, &solved.layer.config, &layer));
    check(moecclMoeLayerGetShapes(layer, &shapes));
    moe_reference::Shard shard = moe_reference::shardOf(solved.layer, shapes);
    std::vector<float> gate = solved.layer.gate;
    shard.weights.gate = gate.data();
    check(moecclMoeLayerSetWeights(layer, &shard.weights));
    const std::vector<float>& input = solved.inputs[rank / problem.grid.nMp];
    outputs[rank].resize(input.size());
    check(moecclMoeForward(layer, input.data(), outputs[rank].data(), nullptr));
    const moe_reference::Shard next = moe_reference::shardOf(other.layer, shapes);
    std::copy(next.w1.begin(), next.w1.end(), shard.w1.begin());
    std::copy(next.b1.begin(), next.b1.end(), shard.b1.begin());
    std::copy(next.w2.begin(), next.w2.end(), shard.w2.begin());
    std::copy(next.b2.begin(), next.b2.end(), shard.b2.begin());
    std::copy(other.layer.gate.begin(), other.layer.gate.end(), gate.begin());
    check(moecclMoeForward(layer, input.data(), outputs[rank].data(), nullptr));
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const auto& expected = other.expected[rank / problem.grid.nMp].output;
    EXPECT_LE(moe_reference::largestError(outputs[rank].data(), expected.data(),
                                          static_cast<std::int64_t>(expected.size())),
              1e-5);
  }
}

// What GetShapes says of each rank: the shards of all ranks tile the layer.
TEST(Shapes, ShardsTileTheLayer) {
  for (moecclGridOrder_t order : kOrders) {
    Problem problem = six("shapes");
    problem.grid.order = order;
    std::vector<moecclMoeShapes_t> shapes(problem.ranks(), MOECCL_MOE_SHAPES_INITIALIZER);
    const Solved solved = solve(problem);
    runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
      moecclGrid_t grid = nullptr;
      moecclMoeLayer_t layer = nullptr;
      check(moecclGridCreate(comm, problem.grid, &grid));
      check(moecclMoeLayerCreate(grid, &solved.layer.config, &layer));
      check(moecclMoeLayerGetShapes(layer, &shapes[rank]));
      check(moecclMoeLayerDestroy(layer));
      check(moecclGridDestroy(grid));
    });
    std::vector<int> held(problem.experts * problem.hidden);
    for (const moecclMoeShapes_t& shape : shapes) {
      EXPECT_EQ(shape.capacityGroups, 2);
      EXPECT_EQ(shape.schedule, moecclScheduleS1);
      for (std::int64_t e = 0; e < shape.localExperts; ++e)
        for (std::int64_t h = 0; h < shape.localHidden; ++h)
          ++held[(shape.firstExpert + e) * problem.hidden + shape.firstHidden + h];
    }
    EXPECT_EQ(held, std::vector<int>(held.size(), 1));
  }
}

}  // namespace
}  // namespace moeccl::test
