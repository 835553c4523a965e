// Well-formed plans that read too early, move the wrong data or get stuck, and what the verifier
// says.
#include "src/exec/tag.h"
#include "tests/plans/wrong_plans.h"

namespace moeccl::testing {
namespace {

TEST(Verify, AcceptsWhatIsRight) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    EXPECT_EQ(text(verify({Collective::allToAll, ranks}, exchange(ranks))), "");
}

TEST(Verify, AsksForOnePlanPerRank) {
  EXPECT_THROW(verify(kThreeRanks, exchange(2)), std::invalid_argument);
}

TEST(Verify, CountsLanesAndMessagesAsTagsDo) {
  EXPECT_EQ(kMaxLanes, 1 << kLaneBits);
  EXPECT_EQ(kMaxMessagesPerLane, 1 << kSequenceBits);
}

TEST(Verify, StopsAtTheLimitOfViolations) {
  const std::vector<Plan> empty(40);
  EXPECT_EQ(verify({Collective::allToAll, 40}, empty).size(), 16u);
  EXPECT_EQ(verify({Collective::allToAll, 40}, empty, {.violations = 3}).size(), 3u);
}

// ---- Order ----

TEST(VerifyOrder, BlockNeverWritten) {
  Plan plan = exchange(2, 0);
  plan.ops.erase(plan.ops.begin());
  expectRejected(kTwoRanks, againstRightOne(plan), 0, -1,
                 {"rank 0 never writes out[0]", "must hold block 0 of rank 0"});
}

TEST(VerifyOrder, DoubleWrite) {
  Plan plan = exchange(2, 0);
  plan.ops.push_back(plan.ops[0]);
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 3,
                 {"rank 0 op 3 (copy in[0] -> out[0])", "writes out[0]", "op 0"});
}

TEST(VerifyOrder, DoubleWriteByOneOp) {
  PlanBuilder plan;
  plan.copy({}, {input(0), input(0)}, {output(0), output(0)});
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"(copy in[0]x2 -> out[0]x2)", "writes out[0]", "already"});
}

// Rank 0 passes its own block through scratch before it sends it.
Plan staged(bool depends, bool written = true) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(0));
  plan.recv({}, 1, output(1));
  const int block = plan.scratch({0, 1});
  OpRange copied{0, 0};
  if (written) copied = {plan.copy({}, input(1), scratch(block))};
  plan.send({.step = 1}, 1, scratch(block), {{copied.first, depends ? copied.count : 0}});
  return plan.build();
}

TEST(VerifyOrder, ReadBeforeWrite) {
  EXPECT_EQ(text(verify(kTwoRanks, againstRightOne(staged(true)))), "");
  expectRejected(kTwoRanks, againstRightOne(staged(false)), 0, 3,
                 {"rank 0 op 3 (send scratch[0] to rank 1)", "reads scratch[0]",
                  "does not depend on op 2 (copy in[1] -> scratch[0])"});
}

TEST(VerifyOrder, ReadOfWhatNothingWrites) {
  expectRejected(
      kTwoRanks, againstRightOne(staged(false, false)), 0, 2,
      {"rank 0 op 2 (send scratch[0] to rank 1)", "reads scratch[0], which nothing writes"});
}

TEST(VerifyOrder, AcceptsADependencyThroughOthers) {
  PlanBuilder plan;
  const int block = plan.scratch({0, 1});
  const int staged = plan.copy({}, input(1), scratch(block));
  const int copied = plan.copy({.step = 1}, input(0), output(0), {{staged}});
  plan.recv({}, 1, output(1));
  plan.send({.step = 2}, 1, scratch(block), {{copied}});
  EXPECT_EQ(text(verify(kTwoRanks, againstRightOne(plan.build()))), "");
}

// ---- Data ----

TEST(VerifyData, SwappedBlock) {
  PlanBuilder plan;
  plan.copy({}, input(1), output(0));
  plan.recv({}, 1, output(1));
  plan.send({}, 1, input(1));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"rank 0 op 0 (copy in[1] -> out[0])", "brings block 1 of rank 0 into out[0]",
                  "must hold block 0 of rank 0"});
}

TEST(VerifyData, WrongBlockArrives) {
  std::vector<Plan> plans = exchange(3);
  plans[2].blockPool[plans[2].ops[2].src.begin] = input(1);  // send in[0] to rank 0
  expectRejected(kThreeRanks, plans, 0, 1,
                 {"rank 0 op 1 (recv out[2] from rank 2)", "brings block 1 of rank 2 into out[2]",
                  "must hold block 0 of rank 2"});
}

TEST(VerifyData, ScratchOfAnotherSize) {
  Plan plan = staged(true);
  plan.scratch[0] = {0, 0};
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 2,
                 {"rank 0 op 2 (copy in[1] -> scratch[0])",
                  "brings block 1 of rank 0 into scratch[0]", "as large as block 0 of rank 0"});
}

TEST(VerifyData, OutputThatNobodyPromised) {
  Promise promise = promiseOf(kTwoRanks);
  promise.expected = [](int rank, int block, std::vector<Payload>& payloads) {
    if (rank != 0 || block != 0) payloads.push_back({block, rank});
  };
  expectRejected(verify(promise, exchange(2)), 0, 0,
                 {"rank 0 op 0 (copy in[0] -> out[0])", "brings block 0 of rank 0 into out[0]",
                  "must hold nothing"});
  Plan plan = exchange(2, 0);
  plan.ops.erase(plan.ops.begin());
  EXPECT_EQ(text(verify(promise, againstRightOne(plan))), "");
}

// ---- Deadlock ----

// Each rank sends only once it has received.
TEST(VerifyDeadlock, CyclicWait) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 3; ++rank) {
    PlanBuilder plan;
    plan.copy({}, input(rank), output(rank));
    const int before = (rank + 2) % 3, after = (rank + 1) % 3;
    const int arrived = plan.recv({}, before, output(before));
    plan.send({.step = 1}, after, input(after), {{arrived}});
    plan.recv({}, after, output(after));
    plan.send({}, before, input(before));
    plans.push_back(plan.build());
  }
  const auto violations = verify(kThreeRanks, plans);
  expectRejected(
      violations, 0, 1,
      {"rank 0 op 1 (recv out[2] from rank 2)", "cyclic wait",
       "waits for rank 2 op 2 (send in[0] to rank 0)", "rank 1 op 1 (recv out[0] from rank 0)"});
}

// Two ranks that send before they receive: right by dependencies alone, stuck as streams when sends
// wait for their receives.
TEST(VerifyDeadlock, StepsInTheWrongOrder) {
  const auto plans = [](int stepOfReceive) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 2; ++rank) {
      PlanBuilder plan;
      plan.copy({}, input(rank), output(rank));
      plan.send({}, 1 - rank, input(1 - rank));
      plan.recv({.step = stepOfReceive}, 1 - rank, output(1 - rank));
      plans.push_back(plan.build());
    }
    return plans;
  };
  EXPECT_EQ(text(verify(kTwoRanks, plans(0))), "");
  const auto violations = verify(kTwoRanks, plans(1));
  expectRejected(violations, 0, 1,
                 {"rank 0 op 1 (send in[1] to rank 1)", "cyclic wait of streams",
                  "rank 0 lane 0 step 0 waits for rank 1 lane 0 step 1 by its op 1",
                  "rank 1 lane 0 step 1 waits for rank 1 lane 0 step 0"});
  EXPECT_EQ(violations.size(), 1u);
}

// Lanes of one rank that wait for each other through dependencies of their steps.
TEST(VerifyDeadlock, LanesThatCrossEachOther) {
  PlanBuilder plan;
  const int a = plan.scratch({0, 0}), b = plan.scratch({0, 0});
  const int first = plan.copy({.lane = 0, .step = 1}, input(0), scratch(a));
  const int second = plan.copy({.lane = 1, .step = 1}, input(0), scratch(b));
  plan.copy({.lane = 0, .step = 0}, scratch(b), output(0), {{second}});
  plan.recv({.lane = 0, .step = 2}, 1, output(1));
  plan.send({.lane = 0, .step = 2}, 1, input(1));
  std::vector<Plan> plans = againstRightOne(plan.build());
  EXPECT_EQ(text(verify(kTwoRanks, plans)), "");
  const int c = static_cast<int>(plans[0].scratch.size());
  plans[0].scratch.push_back({0, 0});
  Op crossing = plans[0].ops[2];
  crossing.lane = 1;
  crossing.dst = {static_cast<int>(plans[0].blockPool.size()), 1};
  plans[0].blockPool.push_back(scratch(c));
  crossing.src = {static_cast<int>(plans[0].blockPool.size()), 1};
  plans[0].blockPool.push_back(scratch(a));
  crossing.deps = {static_cast<int>(plans[0].depPool.size()), 1};
  plans[0].depPool.push_back({first});
  plans[0].ops.push_back(crossing);
  expectRejected(kTwoRanks, plans, 0, 2,
                 {"rank 0 op 2 (copy scratch[1] -> out[0])", "cyclic wait of streams",
                  "rank 0 lane 0 step 0 waits for rank 0 lane 1 step 1"});
}

// Messages on two lanes, which the ranks launch in different orders: fine while both lanes run at
// once, stuck on a machine that runs one step after another.
TEST(VerifyDeadlock, LaunchesInDifferentOrders) {
  const auto plans = [](int firstLaneOfRank1) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 2; ++rank) {
      PlanBuilder plan;
      const int first = rank == 0 ? 0 : firstLaneOfRank1;
      plan.copy({}, input(rank), output(rank));
      for (int lane : {first, 1 - first})
        if (lane == rank)
          plan.send({.lane = static_cast<std::int16_t>(lane)}, 1 - rank, input(1 - rank));
        else
          plan.recv({.lane = static_cast<std::int16_t>(lane)}, 1 - rank, output(1 - rank));
      plans.push_back(plan.build());
      plans.back().lanes = 2;
    }
    return plans;
  };
  EXPECT_EQ(text(verify(kTwoRanks, plans(0))), "");
  // Without the copy, a lane's place is that of its message.
  std::vector<Plan> crossed = plans(1);
  crossed[1].ops[0].lane = 1;
  expectRejected(verify(kTwoRanks, crossed), 0, 1,
                 {"rank 0 op 1 (send in[1] to rank 1)", "cyclic wait of launches",
                  "rank 0 lane 0 step 0 waits for rank 1 lane 0 step 0",
                  "rank 1 lane 0 step 0 waits for rank 1 lane 1 step 0"});
}

// ---- Sums ----

// Reduce-scatter: output 0 of rank r is the sum of everybody's block r.
Promise reduceScatter(int ranks) {
  return {.ranks = ranks,
          .inputBlocks = [ranks](int) { return ranks; },
          .outputBlocks = [](int) { return 1; },
          .expected =
              [ranks](int rank, int, std::vector<Payload>& payloads) {
                for (int source = 0; source < ranks; ++source) payloads.push_back({source, rank});
              },
          .sums = true};
}

// Everybody collects its block from everybody in scratch [0, ranks - 1) and adds it to its own.
Plan collect(int ranks, int rank, const BlockList& summed) {
  PlanBuilder plan;
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
    plan.recv({}, from, scratch(plan.scratch({rank, rank})));
    plan.send({}, to, input(to));
  }
  plan.reduce({.step = 1}, summed, output(0), {plan.since(0)});
  return plan.build();
}

std::vector<Plan> collect(int ranks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank)
    plans.push_back(collect(ranks, rank, {input(rank), scratch(0, ranks - 1)}));
  return plans;
}

TEST(VerifySums, AcceptsEachContributionOnce) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    EXPECT_EQ(text(verify(reduceScatter(ranks), collect(ranks))), "");
}

TEST(VerifySums, MissingContribution) {
  std::vector<Plan> plans = collect(3);
  plans[1] = collect(3, 1, {input(1), scratch(0)});
  expectRejected(verify(reduceScatter(3), plans), 1, 4,
                 {"rank 1 op 4 (reduce in[1] scratch[0] -> out[0])",
                  "brings the sum of block 1 of rank 0, block 1 of rank 1 into out[0]",
                  "must hold the sum of block 1 of rank 0, block 1 of rank 1, block 1 of rank 2"});
}

TEST(VerifySums, ContributionTwice) {
  std::vector<Plan> plans = collect(3);
  plans[1] = collect(3, 1, {input(1), scratch(0, 2), input(1)});
  expectRejected(verify(reduceScatter(3), plans), 1, 4,
                 {"block 1 of rank 1, block 1 of rank 1", "into out[0]"});
}

TEST(VerifySums, ContributionOfAnotherSize) {
  std::vector<Plan> plans = collect(3);
  plans[2].scratch[0] = {0, 1};
  expectRejected(verify(reduceScatter(3), plans), 2, 0,
                 {"rank 2 op 0 (recv scratch[0] from rank 1)", "brings block 2 of rank 1",
                  "as large as block 1 of rank 0"});
}

// Partial sums travel along a chain, several blocks to a reduction.
TEST(VerifySums, FollowsPartialSums) {
  // All blocks gather at the last rank, which promises to hold both sums.
  const Promise promise{.ranks = 3,
                        .inputBlocks = [](int) { return 2; },
                        .outputBlocks = [](int rank) { return rank == 2 ? 2 : 0; },
                        .expected =
                            [](int, int block, std::vector<Payload>& payloads) {
                              for (int source : {2, 0, 1}) payloads.push_back({source, block});
                            },
                        .sums = true};
  PlanBuilder first, middle, last;
  first.send({}, 1, input(0, 2));
  const int arrived = middle.scratch({1, 0});
  middle.scratch({1, 1});
  const int summed = middle.scratch({1, 0});
  middle.scratch({1, 1});
  middle.recv({}, 0, scratch(arrived, 2));
  middle.reduce({.step = 1}, {scratch(arrived, 2), input(0, 2)}, scratch(summed, 2), {{0}});
  middle.send({.step = 2}, 2, scratch(summed, 2), {{1}});
  last.scratch({1, 0});
  last.scratch({1, 1});
  last.recv({}, 1, scratch(0, 2));
  last.reduce({.step = 1}, {input(0, 2), scratch(0, 2)}, output(0, 2), {{0}});
  std::vector<Plan> plans{first.build(), middle.build(), last.build()};
  EXPECT_EQ(text(verify(promise, plans)), "");

  plans[1].blockPool[plans[1].ops[1].src.begin] = scratch(arrived + 1, 2, -1);
  expectRejected(
      verify(promise, plans), 1, 1,
      {"rank 1 op 1 (reduce scratch[1..0:-1] in[0..1] -> scratch[2..3])",
       "brings the sum of block 1 of rank 0, block 0 of rank 1", "as large as block 0 of rank 1"});
}

}  // namespace
}  // namespace moeccl::testing
