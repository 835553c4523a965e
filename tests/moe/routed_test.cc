// Layers whose rows go by token routing: ranks as threads, and as processes over what
// MOECCL_TEST_PROCESSES says.
#include <gtest/gtest.h>

#include "tests/moe/learn.h"
#include "tests/moe/on_layer.h"
#include "tests/moe/own_numbers.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

const auto nameOfLayer = [](const auto& info) { return nameOfCase(info.param); };

class Routed : public testing::TestWithParam<Problem> {};

TEST_P(Routed, ComputesTheReferenceUnderEverySchedule) { expectAllSchedules(GetParam()); }

TEST_P(Routed, LearnsWhatTheReferenceDoesUnderEverySchedule) {
  const Task task = taskOf(GetParam());
  for (const moecclSchedule_t schedule : schedulesOf(task.problem))
    learn(task, {.schedule = schedule});
}

INSTANTIATE_TEST_SUITE_P(Table, Routed, testing::ValuesIn(routedProblems()), nameOfLayer);

Problem sixRouted() {
  Problem problem = six("routed");
  problem.tokens = 21;
  problem.choices = 3;
  problem.dropless = true;
  problem.tokenRouting = 1;
  problem.nodes = {2, 4};
  return problem;
}

TEST(RoutedPasses, InPlaceAndOnAStream) {
  for (const std::int64_t residual : {0, 5})
    for (const int nMp : {2, 6}) {
      Problem problem = sixRouted();
      problem.residual = residual;
      problem.grid.nMp = nMp;
      const Task task = taskOf(problem);
      for (const moecclSchedule_t schedule : schedulesOf(problem)) {
        runLayer(problem, solve(problem),
                 {.schedule = schedule, .ownStream = true, .inPlace = true});
        learn(task, {.schedule = schedule,
                     .ownStream = true,
                     .inPlace = true,
                     .passes = 3,
                     .backwards = 2,
                     .before = 0.5});
        learn(task, {.schedule = schedule, .onlyInput = true, .afterOthers = true});
      }
    }
}

// As without routing, the ranks of an MP group must not drift apart.
TEST(RoutedPasses, TheSameBitsWhereRanksShare) {
  for (const int nMp : {2, 6}) {
    Problem problem = sixRouted();
    problem.grid.nMp = nMp;
    problem.residual = 5;
    const auto all = learn(taskOf(problem), {.schedule = moecclScheduleS1});
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      const Learned& first = all[rank / nMp * nMp];
      EXPECT_EQ(all[rank].input, first.input) << "rank " << rank;
      EXPECT_EQ(all[rank].gate, first.gate) << "rank " << rank;
      EXPECT_EQ(all[rank].residualW1, first.residualW1) << "rank " << rank;
    }
  }
}

// The output shows each choice's weight: to the last bit what goes without routing.
TEST(RoutedPasses, WeighAsOthersDo) {
  Problem problem = sixRouted();
  problem.probe = true;
  const Solved solved = solve(problem);
  Solved plain = solved;
  plain.layer.config.tokenRouting = -1;
  for (const moecclSchedule_t schedule : schedulesOf(problem)) {
    const auto routed = runLayer(problem, solved, {.schedule = schedule});
    const auto others = runLayer(problem, plain, {.schedule = schedule});
    for (int rank = 0; rank < problem.ranks(); ++rank)
      EXPECT_EQ(routed[rank].output, others[rank].output) << nameOf(schedule) << ", rank " << rank;
  }
}

// One pass of a layer, step by step.
class OnePass {
 public:
  OnePass(const Problem& problem, moecclMoeLayer_t layer, bool counts, int batch)
      : problem_(problem), counts_(counts), own_(problem, batch) {
    const auto input = encode(problem.datatype, own_.tokens);
    const auto given = encode(problem.datatype, own_.weights);
    moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
    routing.experts = own_.experts.data();
    routing.weights = given.data();
    check(moecclMoeBegin(layer, input.data(), &routing, nullptr, &pass_, &rows_));
    doubleRows(problem_, rows_, rows_.rows, counts_);
  }
  void end() {
    auto result = encode(problem_.datatype, own_.gradients);
    check(moecclMoeEnd(pass_, result.data(), nullptr));
    checkThat(decode(problem_.datatype, result) == own_.output, "output");
  }
  void backward() {
    auto result = encode(problem_.datatype, own_.gradients);
    auto ofWeights = encode(problem_.datatype, own_.weights);
    check(moecclMoeEndBackward(pass_, result.data(), nullptr, &rows_));
    doubleRows(problem_, rows_, rows_.results, counts_);
    check(moecclMoeBeginBackward(pass_, result.data(), ofWeights.data(), nullptr));
    checkThat(decode(problem_.datatype, result) == own_.inputGradient, "gradient of the input");
    checkThat(decode(problem_.datatype, ofWeights) == own_.weightGradients,
              "gradient of the weights");
    check(moecclMoePassDestroy(pass_));
  }

 private:
  const Problem& problem_;
  const bool counts_;
  const OwnNumbers own_;
  moecclMoePass_t pass_ = nullptr;
  moecclMoeRows_t rows_ = MOECCL_MOE_ROWS_INITIALIZER;
};

// Two passes are open at once.
void runPasses(const Problem& problem, moecclSchedule_t schedule, moecclComm_t comm, int rank) {
  moecclGrid_t grid = makeGrid(comm, problem.grid);
  moecclMoeConfig_t config = ownConfig(problem);
  config.schedule = schedule;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const bool counts = shapes.firstHidden == 0;
  const int batch = rank / problem.grid.nMp;
  OnePass one(problem, layer, counts, batch), other(problem, layer, counts, batch + 1);
  one.end();
  other.end();
  other.backward();
  OnePass third(problem, layer, counts, batch + 2);
  one.backward();
  third.end();
  third.backward();
  check(moecclMoeLayerDestroy(layer));
  check(moecclGridDestroy(grid));
}

TEST(RoutedPasses, AreExactAroundOwnExperts) {
  for (const moecclDataType_t datatype : {moecclFloat32, moecclFloat16, moecclBfloat16})
    for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                          {1, 3, 1, moecclOrderEspEp},
                                          {4, 2, 2, moecclOrderEpEsp},
                                          {1, 1, 1, moecclOrderEspEp}})
      for (const std::int64_t tokens : {0, 1, 23}) {
        Problem problem{.name = "own experts"};
        problem.grid = grid;
        problem.tokens = tokens;
        problem.experts = 4 * grid.nEp;
        problem.datatype = datatype;
        problem.dropless = true;
        problem.tokenRouting = 1;
        if (problem.ranks() > 1) problem.nodes = {1, problem.ranks() - 1};
        for (const moecclSchedule_t schedule : schedulesOf(problem)) {
          if (schedule == moecclScheduleBaseline && grid.nMp > 1) continue;
          SCOPED_TRACE(problem.text() + ", " + nameOf(schedule));
          runJob(jobOf(problem),
                 [&](moecclComm_t comm, int rank) { runPasses(problem, schedule, comm, rank); });
          if (HasFailure()) return;
        }
      }
}

TEST(RoutedProcesses, LearnWhatTheReferenceDoes) {
  for (const int nMp : {1, 2}) {
    Problem problem = sixRouted();
    problem.grid.nMp = nMp;
    problem.tokens = 101;
    problem.embedding = 64;
    problem.residual = nMp == 1 ? 0 : 16;
    const Task task = taskOf(problem);
    for (const moecclSchedule_t schedule : schedulesOf(problem))
      learn(task, {.schedule = schedule, .passes = 2, .processes = true});
  }
}

TEST(RoutedLayers, SayWhatTheyAre) {
  Problem problem = sixRouted();
  const Solved solved = solve(problem);
  for (const std::int64_t tokenRouting : {-1, 0, 1}) {
    moecclMoeConfig_t config = solved.layer.config;
    config.schedule = moecclScheduleS1;
    config.tokenRouting = tokenRouting;
    onLayer(jobOf(problem), problem, solved, config, [&](const LayerRank& at) {
      checkThat(tokenRouting == 0 || at.shapes.tokenRouting == (tokenRouting > 0 ? 1 : 0),
                "shapes say something else");
    });
  }
}

}  // namespace
}  // namespace moeccl::test
