// The layer on real communicators, ranks as threads, against the single-process reference.
#include <gtest/gtest.h>

#include "tests/moe/on_layer.h"

namespace moeccl::test {
namespace {

class Layers : public testing::TestWithParam<Problem> {};

TEST_P(Layers, ComputeTheReferenceUnderEverySchedule) { expectAllSchedules(GetParam()); }

const auto nameOfLayer = [](const auto& info) { return nameOfCase(info.param); };
INSTANTIATE_TEST_SUITE_P(Table, Layers, testing::ValuesIn(every(3, layers(), false)), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Wide, Layers, testing::ValuesIn(every(3, layers(), true)), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Narrow, Layers, testing::ValuesIn(narrowProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Hard, Layers, testing::ValuesIn(hardProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Slow, Layers, testing::ValuesIn(layersOnAllGrids()), nameOfLayer);

TEST(AllSchedules, OverlapTheResidualBranchWhateverMovesTheBytes) {
  for (bool progressThread : {false, true})
    for (std::int64_t chunks : {1, 2}) {
      Problem problem = six("residual branch");
      problem.tokens = 43;
      problem.capacityGroups = 4;
      problem.chunks = chunks;
      problem.residual = 7;
      const Solved solved = solve(problem);
      for (moecclSchedule_t schedule : schedulesOf(problem))
        runLayer(problem, solved,
                 {.schedule = schedule,
                  .ownStream = true,
                  .inPlace = true,
                  .progressThread = progressThread,
                  .forwards = 4});
    }
}

TEST(Problems, AreAsHardAsTheySay) {
  const auto solved = [](const char* name) { return solve(hardProblem(name)).expected[0]; };
  EXPECT_EQ(solved("one place per group").capacity, 2);
  EXPECT_TRUE(solved("places for all").placeless.empty());
  EXPECT_EQ(solved("places for all").capacity, 20);
  EXPECT_FALSE(solved("hot expert").placeless.empty());
  EXPECT_EQ(solved("hot expert").assigned[1], 20);
  EXPECT_EQ(solved("experts without tokens").assigned[0], 0);
  EXPECT_TRUE(solved("every expert chosen").placeless.empty());
  EXPECT_FALSE(solved("one group that parts cut").placeless.empty());
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
        expectAllSchedules(problem);
        problem.grid.nMp = problem.ranks();
        expectAllSchedules(problem);
        if (HasFailure()) return;
      }
}

TEST(Forward, ThroughEveryAlgorithm) {
  for (const char* algorithms :
       {"alltoall=linear;allgather=ring;combineallgather=pipelined;splitdispatch=flat",
        "dispatch=hierarchical;combine=bruck;combineallgather=hierarchical;splitdispatch=bruck",
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

void expectChunksAsParts(const Problem& problem, moecclSchedule_t schedule) {
  SCOPED_TRACE(problem.text() + ", " + nameOf(schedule));
  const Solved chunked = solve(problem);
  Solved whole = chunked;
  whole.layer.config.chunks = 1;
  const auto outcomes = runLayer(problem, chunked, {.schedule = schedule});
  const auto expected = runLayer(problem, whole, {.schedule = schedule});
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    // Without capacity parts of other sizes are added up.
    EXPECT_NEAR(outcomes[rank].auxiliaryLoss, expected[rank].auxiliaryLoss,
                problem.dropless ? 1e-12 : 0);
    EXPECT_EQ(outcomes[rank].assigned, expected[rank].assigned);
    EXPECT_EQ(outcomes[rank].kept, expected[rank].kept);
    if (problem.probe) {
      EXPECT_EQ(outcomes[rank].output, expected[rank].output);
    }
    // BLAS may round the rows of larger matrices otherwise.
    EXPECT_LE(moe_reference::largestError(outcomes[rank].output, expected[rank].output),
              toleranceOf(problem.datatype) / 10);
  }
}

class Chunked : public testing::TestWithParam<Problem> {};

TEST_P(Chunked, ComputesWhatThePartsDo) {
  Problem problem = GetParam();
  for (const moecclSchedule_t schedule : chunkedSchedulesOf(problem))
    expectChunksAsParts(problem, schedule);
  if (problem.dropless) return;  // it has no places to show
  problem.probe = true;
  problem.embedding = problem.experts;
  expectChunksAsParts(problem, moecclScheduleS1);
}

INSTANTIATE_TEST_SUITE_P(Table, Chunked, testing::ValuesIn(chunkedProblems()), nameOfLayer);
INSTANTIATE_TEST_SUITE_P(Dropless, Chunked, testing::ValuesIn(chunkedDroplessProblems()),
                         nameOfLayer);

TEST(Chunks, InPlaceOnAStreamThroughEveryAlgorithm) {
  Problem problem = six("chunks");
  problem.tokens = 43;
  problem.capacityGroups = 8;
  problem.chunks = 4;
  const Solved solved = solve(problem);
  for (const char* algorithms : {"dispatch=flat;combine=flat;allgather=ring",
                                 "dispatch=dedup;combine=dedup;allgather=linear"})
    for (bool progressThread : {false, true})
      runLayer(problem, solved,
               {.schedule = moecclScheduleS1,
                .algorithms = algorithms,
                .ownStream = true,
                .inPlace = true,
                .progressThread = progressThread,
                .forwards = 4});
}

TEST(Chunks, WithoutCapacityInPlaceOnAStream) {
  Problem problem = six("chunks without capacity");
  problem.tokens = 43;
  problem.dropless = true;
  problem.residual = 5;
  problem.chunks = 4;
  const Solved solved = solve(problem);
  for (const moecclSchedule_t schedule : chunkedSchedulesOf(problem))
    for (bool progressThread : {false, true})
      runLayer(problem, solved,
               {.schedule = schedule,
                .ownStream = true,
                .inPlace = true,
                .progressThread = progressThread,
                .forwards = 4});
}

TEST(Chunks, OtherSchedulesIgnoreThem) {
  Problem problem = six("chunks");
  problem.capacityGroups = 2;
  problem.chunks = 5;
  const Solved solved = solve(problem);
  for (moecclSchedule_t schedule : {moecclScheduleBaseline, moecclScheduleS2})
    runLayer(problem, solved, {.schedule = schedule});
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
  std::vector<moe_reference::Elements> outputs(problem.ranks());
  onLayer(problem, solved, moecclScheduleAuto, [&](const LayerRank& at) {
    moe_reference::Elements& output = outputs[at.rank];
    output.resize(at.input.size());
    check(moecclMoeForward(at.layer, at.input.data(), output.data(), nullptr));
    moe_reference::Shard& shard = at.shard;
    const moe_reference::Shard next = moe_reference::shardOf(other.layer, at.shapes);
    std::copy(next.w1.begin(), next.w1.end(), shard.w1.begin());
    std::copy(next.b1.begin(), next.b1.end(), shard.b1.begin());
    std::copy(next.w2.begin(), next.w2.end(), shard.w2.begin());
    std::copy(next.b2.begin(), next.b2.end(), shard.b2.begin());
    std::copy(next.gate.begin(), next.gate.end(), shard.gate.begin());
    check(moecclMoeForward(at.layer, at.input.data(), output.data(), nullptr));
  });
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const auto& expected = other.expected[rank / problem.grid.nMp].output;
    EXPECT_LE(moe_reference::largestError(moe_reference::decode(problem.datatype, outputs[rank]),
                                          expected),
              toleranceOf(problem.datatype));
  }
}

// What GetShapes says of each rank: the shards of all ranks tile the layer.
TEST(Shapes, ShardsTileTheLayer) {
  for (moecclGridOrder_t order : {moecclOrderEspEp, moecclOrderEpEsp}) {
    Problem problem = six("shapes");
    problem.grid.order = order;
    std::vector<moecclMoeShapes_t> shapes(problem.ranks(), MOECCL_MOE_SHAPES_INITIALIZER);
    const Solved solved = solve(problem);
    runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
      moecclGrid_t grid = makeGrid(comm, problem.grid);
      moecclMoeLayer_t layer = nullptr;
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
