// The gradients of the layer on real communicators, ranks as threads, against the single-process
// reference, which reference_test.cc holds against differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>

#include "tests/moe/problem.h"

namespace moeccl::test {
namespace {

using moe_reference::Gradients;

constexpr double kAuxiliaryLossScale = 0.7;

struct Task {
  Problem problem;
  Solved solved;
  std::vector<std::vector<float>> outputGradients;  // by batch
  std::vector<Gradients> expected;                  // by batch; of experts' weights: of all batches
};

void add(std::vector<double>& sum, const std::vector<double>& summand) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += summand[i];
}

Task taskOf(Problem problem) {
  problem.training = true;
  Task task{problem, solve(problem), {}, {}};
  std::mt19937 random(problem.seed + 1);
  std::uniform_real_distribution<float> value(-1, 1);
  Gradients sum;
  int batch = 0;
  for (const std::vector<float>& input : task.solved.inputs) {
    std::vector<float>& gradient = task.outputGradients.emplace_back(input.size());
    for (float& each : gradient) each = value(random);
    task.expected.push_back(moe_reference::backward(task.solved.layer, input.data(),
                                                    gradient.data(), kAuxiliaryLossScale,
                                                    chanceOf(problem, batch++)));
    if (task.expected.size() == 1) {
      sum = task.expected[0];
      continue;
    }
    for (auto Gradients::*weights :
         {&Gradients::w1, &Gradients::b1, &Gradients::w2, &Gradients::b2})
      add(sum.*weights, task.expected.back().*weights);
  }
  for (Gradients& each : task.expected)
    for (auto Gradients::*weights :
         {&Gradients::w1, &Gradients::b1, &Gradients::w2, &Gradients::b2})
      each.*weights = sum.*weights;
  return task;
}

// What a rank gets.
struct Learned {
  std::vector<float> input, gate, noise, w1, b1, w2, b2;
};

struct How {
  moecclSchedule_t schedule;
  std::string algorithms = "";
  bool ownStream = false, inPlace = false;
  int passes = 1;            // forward and backward
  int backwards = 1;         // in each pass
  float before = 0;          // in the gradients
  bool onlyInput = false;    // no gradients of weights
  bool afterOthers = false;  // after a pass over other tokens
};

void expectClose(const char* name, const std::vector<float>& actual,
                 const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  EXPECT_LE(moe_reference::largestError(actual.data(), expected.data(),
                                        static_cast<std::int64_t>(expected.size())),
            1e-5)
      << name;
}

void expectLearned(const Learned& learned, Gradients expected, const How& how) {
  for (auto Gradients::*weights : {&Gradients::gate, &Gradients::noise, &Gradients::w1,
                                   &Gradients::b1, &Gradients::w2, &Gradients::b2})
    for (double& each : expected.*weights) each = how.before + how.passes * how.backwards * each;
  expectClose("input", learned.input, expected.input);
  if (how.onlyInput) return;
  expectClose("gate", learned.gate, expected.gate);
  expectClose("noise", learned.noise, expected.noise);
  expectClose("w1", learned.w1, expected.w1);
  expectClose("b1", learned.b1, expected.b1);
  expectClose("w2", learned.w2, expected.w2);
  expectClose("b2", learned.b2, expected.b2);
}

Learned roomFor(const Gradients& shard, float before) {
  const auto room = [before](const std::vector<double>& like) {
    return std::vector<float>(like.size(), before);
  };
  return {room(shard.input), room(shard.gate), room(shard.noise), room(shard.w1),
          room(shard.b1),    room(shard.w2),   room(shard.b2)};
}

void setGradients(moecclMoeLayer_t layer, Learned& learned) {
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = learned.gate.data();
  gradients.noise = learned.noise.empty() ? nullptr : learned.noise.data();
  gradients.w1 = learned.w1.data();
  gradients.b1 = learned.b1.data();
  gradients.w2 = learned.w2.data();
  gradients.b2 = learned.b2.data();
  check(moecclMoeLayerSetGradients(layer, &gradients));
}

// Runs forward and backward, and fails the test where a rank's gradients are not what the reference
// says.
std::vector<Learned> learn(const Task& task, const How& how) {
  const Problem& problem = task.problem;
  std::vector<Learned> all(problem.ranks());
  Job job = jobOf(problem);
  job.algorithms = how.algorithms;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = nullptr;
    check(moecclGridCreate(comm, problem.grid, &grid));
    moecclMoeConfig_t config = task.solved.layer.config;
    config.schedule = how.schedule;
    config.training = 1;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    const moe_reference::Shard shard = moe_reference::shardOf(task.solved.layer, shapes);
    check(moecclMoeLayerSetWeights(layer, &shard.weights));
    const int batch = rank / problem.grid.nMp;
    const Gradients expected =
        moe_reference::shardOf(task.solved.layer, shapes, task.expected[batch]);
    Learned& learned = all[rank];
    learned = roomFor(expected, how.before);
    moecclStream_t stream = nullptr;
    if (how.ownStream) check(moecclStreamCreate(comm, &stream));
    if (how.afterOthers) {
      std::vector<float> others = task.solved.inputs[batch];
      std::ranges::reverse(others);
      check(moecclMoeForward(layer, others.data(), others.data(), stream));
      check(moecclMoeBackward(layer, others.data(), kAuxiliaryLossScale, others.data(), stream));
    }
    if (!how.onlyInput) setGradients(layer, learned);
    for (int pass = 0; pass < how.passes; ++pass) {
      // The layer keeps what it needs by itself: the caller's input may go.
      std::vector<float> tokens = task.solved.inputs[batch];
      check(moecclMoeLayerSetStep(layer, problem.step));
      check(moecclMoeForward(layer, tokens.data(), tokens.data(), stream));
      for (int i = 0; i < how.backwards; ++i) {
        std::vector<float> gradient = task.outputGradients[batch];
        if (how.inPlace)
          learned.input = gradient;
        else
          learned.input.assign(gradient.size(), std::numeric_limits<float>::quiet_NaN());
        check(moecclMoeBackward(layer, how.inPlace ? learned.input.data() : gradient.data(),
                                kAuxiliaryLossScale, learned.input.data(), stream));
      }
    }
    {
      SCOPED_TRACE(problem.text() + ", " + nameOf(how.schedule) + ", rank " + std::to_string(rank));
      expectLearned(learned, expected, how);
    }
    check(moecclStreamDestroy(stream));
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
  return all;
}

void expectAllSchedulesLearn(const Problem& problem) {
  const Task task = taskOf(problem);
  for (moecclSchedule_t schedule : schedulesOf(problem)) learn(task, {.schedule = schedule});
}

TEST(Backward, FollowsTheReferenceOnEveryGrid) {
  for (const Problem& problem : gridProblems()) {
    expectAllSchedulesLearn(problem);
    if (HasFailure()) return;
  }
}

TEST(Backward, FollowsTheReferenceInHardCases) {
  for (const Problem& problem : hardProblems()) {
    expectAllSchedulesLearn(problem);
    if (HasFailure()) return;
  }
}

TEST(Backward, FollowsTheReferenceInChunks) {
  std::vector<Problem> problems = chunkedProblems();
  std::ranges::copy(chunkedGateProblems(), std::back_inserter(problems));
  for (const Problem& problem : problems) {
    learn(taskOf(problem), {.schedule = moecclScheduleS1});
    if (HasFailure()) return;
  }
  Problem problem = six("chunks");
  problem.capacityGroups = 12;
  problem.chunks = 3;
  const Task task = taskOf(problem);
  learn(task, {.schedule = moecclScheduleS1,
               .ownStream = true,
               .inPlace = true,
               .passes = 2,
               .backwards = 2,
               .before = 0.5f});
  learn(task, {.schedule = moecclScheduleS1, .afterOthers = true});
}

TEST(Backward, FollowsTheReferenceThroughEveryGate) {
  for (const Problem& problem : gateProblems()) {
    expectAllSchedulesLearn(problem);
    if (HasFailure()) return;
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

// Grids of six ranks with MP groups of two and of all.
std::vector<Task> sixes() {
  std::vector<Task> tasks;
  for (int nMp : {2, 6}) {
    Problem problem = six("gradients");
    problem.tokens = 21;
    problem.grid.nMp = nMp;
    tasks.push_back(taskOf(problem));
  }
  return tasks;
}

TEST(Backward, ThroughEveryAlgorithm) {
  for (const Task& task : sixes())
    for (const char* algorithms :
         {"dispatch=flat;combine=flat;combineallgather=pipelined;splitdispatch=flat",
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
      learn(task, {.schedule = schedule, .passes = 3, .backwards = 2, .before = 0.5f});
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

// What ranks share they must agree on to the last bit, or their copies of the weights drift apart.
TEST(Backward, TheSameBitsWhereRanksShare) {
  for (const Task& task : sixes())
    for (moecclSchedule_t schedule : schedulesOf(task.problem)) {
      const auto all = learn(task, {.schedule = schedule});
      const moecclGridShape_t& grid = task.problem.grid;
      for (int rank = 0; rank < task.problem.ranks(); ++rank) {
        const Learned& firstOfMp = all[rank / grid.nMp * grid.nMp];
        EXPECT_EQ(all[rank].input, firstOfMp.input) << nameOf(schedule) << ", rank " << rank;
        EXPECT_EQ(all[rank].gate, firstOfMp.gate) << nameOf(schedule) << ", rank " << rank;
        const Learned& firstShard = all[rank / grid.nEsp * grid.nEsp];
        EXPECT_EQ(all[rank].b2, firstShard.b2) << nameOf(schedule) << ", rank " << rank;
      }
    }
}

}  // namespace
}  // namespace moeccl::test
