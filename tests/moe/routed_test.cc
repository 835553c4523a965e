// Layers whose rows go by token routing: ranks as threads, and as processes over what
// MOECCL_TEST_PROCESSES says.
#include <gtest/gtest.h>

#include "tests/moe/learn.h"
#include "tests/moe/on_layer.h"

namespace moeccl::test {
namespace {

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
