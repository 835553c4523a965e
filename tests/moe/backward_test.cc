// The gradients of the layer on real communicators, ranks as threads, against the single-process
// reference, which reference_test.cc holds against differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "tests/moe/learn.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

void expectAllSchedulesLearn(const Problem& problem) {
  const Task task = taskOf(problem);
  std::vector<Learned> first;
  for (moecclSchedule_t schedule : schedulesOf(problem)) {
    const std::vector<Learned> all = learn(task, {.schedule = schedule});
    if (first.empty()) first = all;
    for (int rank = 0; rank < problem.ranks() && !testing::Test::HasFailure(); ++rank) {
      SCOPED_TRACE(std::string(nameOf(schedule)) + ", against the first schedule");
      EXPECT_NO_THROW(
          checkAlike(problem, all[rank], first[rank], task.expected[rank / problem.grid.nMp]));
    }
  }
}

class Layers : public testing::TestWithParam<Problem> {};

TEST_P(Layers, LearnWhatTheReferenceDoesUnderEverySchedule) { expectAllSchedulesLearn(GetParam()); }

const auto nameOfLayer = [](const auto& info) { return nameOfCase(info.param); };
INSTANTIATE_TEST_SUITE_P(Table, Layers, testing::ValuesIn(every(3, layers(), false)), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Wide, Layers, testing::ValuesIn(every(3, layers(), true)), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Narrow, Layers, testing::ValuesIn(narrowProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Hard, Layers, testing::ValuesIn(hardProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Slow, Layers, testing::ValuesIn(layersOnAllGrids()), nameOfLayer);

class Chunked : public testing::TestWithParam<Problem> {};

TEST_P(Chunked, LearnsWhatTheReferenceDoes) {
  const Task task = taskOf(GetParam());
  for (const moecclSchedule_t schedule : chunkedSchedulesOf(GetParam())) {
    SCOPED_TRACE(nameOf(schedule));
    learn(task, {.schedule = schedule});
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Chunked, testing::ValuesIn(chunkedProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Dropless, Chunked, testing::ValuesIn(chunkedDroplessProblems()),
                         nameOfLayer);

TEST(Backward, FollowsTheReferenceInChunks) {
  Problem problem = six("chunks");
  problem.chunks = 3;
  for (const bool dropless : {false, true}) {
    problem.dropless = dropless;
    problem.capacityGroups = dropless ? 0 : 12;
    const Task task = taskOf(problem);
    for (const moecclSchedule_t schedule : chunkedSchedulesOf(problem)) {
      SCOPED_TRACE(nameOf(schedule));
      learn(task, {.schedule = schedule,
                   .ownStream = true,
                   .inPlace = true,
                   .passes = 2,
                   .backwards = 2,
                   .before = 0.5});
      learn(task, {.schedule = schedule, .afterOthers = true});
    }
  }
}

TEST(Backward, ThroughEveryGateWithoutGradientsOfWeights) {
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    Problem problem = six("gradient of the input alone");
    problem.gate = static_cast<moecclMoeGate_t>(gate);
    problem.choices = gate == moecclGateSwitch ? 1 : 2;
    const Task task = taskOf(problem);
    for (moecclSchedule_t schedule : schedulesOf(problem))
      learn(task, {.schedule = schedule, .onlyInput = true});
  }
}

// Grids of six ranks with MP groups of two and of all, and layers with and without a residual
// branch and capacity.
std::vector<Task> sixes() {
  std::vector<Task> tasks;
  for (int nMp : {2, 6})
    for (const auto& [residual, dropless] :
         {std::pair{0, false}, {5, false}, {0, true}, {5, true}}) {
      Problem problem = six("gradients");
      problem.tokens = 21;
      problem.grid.nMp = nMp;
      problem.residual = residual;
      problem.dropless = dropless;
      tasks.push_back(taskOf(problem));
    }
  return tasks;
}

TEST(Backward, ThroughEveryAlgorithm) {
  for (const Task& task : sixes())
    for (const char* algorithms :
         {"dispatch=flat;combine=flat;combineallgather=pipelined;splitdispatch=flat",
          "dispatch=hierarchical;combine=bruck;combineallgather=hierarchical;splitdispatch=bruck",
          "dispatch=dedup;combine=dedup;combineallgather=sequential;splitdispatch=dedup",
          "alltoall=hierarchical;allreduce=ring;allgather=ring;reducescatter=ring"})
      for (moecclSchedule_t schedule : schedulesOf(task.problem))
        learn(task, {.schedule = schedule, .algorithms = algorithms});
}

TEST(Backward, InPlaceAndOnAStream) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem))
      learn(task, {.schedule = schedule, .ownStream = true, .inPlace = true});
}

TEST(Backward, AddsToTheGradientsOfWeightsAlone) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem))
      learn(task, {.schedule = schedule, .passes = 3, .backwards = 2, .before = 0.5});
}

TEST(Backward, KeepsNothingOfAnEarlierPass) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem))
      learn(task, {.schedule = schedule, .afterOthers = true});
}

TEST(Backward, WithoutGradientsOfWeights) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem))
      learn(task, {.schedule = schedule, .onlyInput = true});
}

// What expected gradients are made of: slopes of the loss that the layer itself computes forward.
Task differencesOf(const Problem& problem, moecclSchedule_t schedule) {
  Task task = taskOf(problem);
  std::vector<Gradients> slopes(problem.ranks());
  runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    moe_reference::Layer whole = task.solved.layer;
    whole.config.schedule = schedule;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &whole.config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    const int batch = rank / problem.grid.nMp;
    std::vector<double> input = task.solved.inputs[batch];
    const auto loss = [&] {
      const moe_reference::Shard shard = moe_reference::shardOf(whole, shapes);
      check(moecclMoeLayerSetWeights(layer, &shard.weights));
      check(moecclMoeLayerSetStep(layer, problem.step));
      Elements tokens = encode(problem.datatype, input);
      check(moecclMoeForward(layer, tokens.data(), tokens.data(), nullptr));
      moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
      check(moecclMoeGetStats(layer, &stats));
      const std::vector<double> output = decode(problem.datatype, tokens);
      return std::inner_product(output.begin(), output.end(), task.outputGradients[batch].begin(),
                                kAuxiliaryLossScale * stats.auxiliaryLoss);
    };
    // All batches step by the same element of their inputs at once: none sees another's.
    const auto differentiate = [&](std::vector<double>& numbers, std::vector<double>& slope) {
      constexpr double kStep = 1e-5;
      for (double& number : numbers) {
        const double here = number;
        number = here + kStep;
        const double above = loss();
        number = here - kStep;
        slope.push_back((above - loss()) / (2 * kStep));
        number = here;
      }
    };
    differentiate(input, slopes[rank].input);
    differentiate(whole.gate, slopes[rank].gate);
    differentiate(whole.noise, slopes[rank].noise);
    differentiate(whole.w1, slopes[rank].w1);
    differentiate(whole.b1, slopes[rank].b1);
    differentiate(whole.w2, slopes[rank].w2);
    differentiate(whole.b2, slopes[rank].b2);
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
  for (int batch = 0; batch < problem.batches(); ++batch)
    task.expected[batch] = slopes[batch * problem.grid.nMp];
  addOverBatches(task.expected);
  return task;
}

// Without the reference: what is learned is the slope of what is computed, in thousands of passes.
TEST(Backward, WideIsTheSlopeOfForward) {
  for (int gate = 0; gate < moecclNumGates; ++gate)
    for (int nMp : {2, 6}) {
      Problem problem = six("slopes");
      problem.datatype = moecclFloat64;
      problem.training = true;
      problem.gate = static_cast<moecclMoeGate_t>(gate);
      problem.choices = gate == moecclGateSwitch ? 1 : 2;
      problem.capacityFactor = 0.5;
      problem.grid.nMp = nMp;
      problem.tokens = nMp == 2 ? 7 : 19;  // some are dropped
      problem.embedding = 3;
      problem.hidden = 6;
      problem.experts = 4;
      problem.capacityGroups = nMp == 2 ? 2 * nMp : nMp;
      problem.chunks = nMp == 2 ? 2 : 1;
      for (moecclSchedule_t schedule : schedulesOf(problem))
        learn(differencesOf(problem, schedule), {.schedule = schedule, .tolerance = 1e-6});
    }
}

// What ranks share they must agree on to the last bit, or their copies of the weights drift apart.
// In the baseline each rank of an MP group computes its own, in other rows of the experts'
// matrices, which not all BLAS kernels round alike (OpenBLAS's for SSE3 do not): there learn()
// compares them with what is expected, as everywhere.
TEST(Backward, TheSameBitsWhereRanksShare) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem)) {
      const auto all = learn(task, {.schedule = schedule});
      const moecclGridShape_t& grid = task.problem.grid;
      for (int rank = 0; rank < task.problem.ranks(); ++rank) {
        const Learned& firstOfMp = all[rank / grid.nMp * grid.nMp];
        // Automatic choice takes none that does not
        // (Select.TrainingTakesTheBaselineOnlyIfAskedFor).
        if (schedule != moecclScheduleBaseline) {
          EXPECT_EQ(all[rank].input, firstOfMp.input) << nameOf(schedule) << ", rank " << rank;
          EXPECT_EQ(all[rank].gate, firstOfMp.gate) << nameOf(schedule) << ", rank " << rank;
        }
        EXPECT_EQ(all[rank].residualW1, firstOfMp.residualW1) << nameOf(schedule);
        EXPECT_EQ(all[rank].residualB2, firstOfMp.residualB2) << nameOf(schedule);
        const Learned& firstShard = all[rank / grid.nEsp * grid.nEsp];
        EXPECT_EQ(all[rank].b2, firstShard.b2) << nameOf(schedule) << ", rank " << rank;
      }
    }
}

}  // namespace
}  // namespace moeccl::test
