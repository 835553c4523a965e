// Plans that are not even well formed, or whose messages do not match, and what the verifier says.
#include "tests/plans/wrong_plans.h"

namespace moeccl::testing {
namespace {

// ---- Shape ----

TEST(VerifyShape, PeerOutOfRange) {
  PlanBuilder plan;
  plan.send({}, 2, input(1));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"rank 0 op 0 (send in[1] to rank 2)", "not one of 0..1"});
}

TEST(VerifyShape, MessageToItself) {
  PlanBuilder plan;
  plan.recv({}, 0, output(0));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"rank 0 op 0 (recv out[0] from rank 0)", "to itself"});
}

TEST(VerifyShape, PeerOfACopy) {
  Plan plan = exchange(2, 0);
  plan.ops[0].peer = 1;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 0, {"stays inside its rank", "rank 1"});
}

TEST(VerifyShape, BlocksOutOfRange) {
  PlanBuilder beyondInput;
  beyondInput.send({}, 1, input(0, 2, 2));
  expectRejected(kTwoRanks, againstRightOne(beyondInput.build()), 0, 0,
                 {"rank 0 op 0 (send in[0..2:2] to rank 1)", "names in[2]; there are 2"});
  PlanBuilder beforeOutput;
  beforeOutput.recv({}, 1, output(1, 3, -1));
  expectRejected(kTwoRanks, againstRightOne(beforeOutput.build()), 0, 0,
                 {"names out[-1]; there are 2"});
  PlanBuilder beyondScratch;
  beyondScratch.scratch({0, 0});
  beyondScratch.copy({}, input(0), scratch(1));
  expectRejected(kTwoRanks, againstRightOne(beyondScratch.build()), 0, 0,
                 {"names scratch[1]; there are 1"});
}

TEST(VerifyShape, ScratchOfNoPayload) {
  PlanBuilder plan;
  plan.scratch({1, 1});
  plan.scratch({1, 2});
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, -1,
                 {"rank 0 has scratch[1]", "block 2 of rank 1", "does not exist"});
}

TEST(VerifyShape, EmptyAndOneSidedOps) {
  Plan plan = exchange(2, 0);
  plan.ops[2].src.count = 0;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 2,
                 {"rank 0 op 2 (send  to rank 1)", "must read blocks", "0 to 0"});
  plan = exchange(2, 0);
  plan.ops[1].src = plan.ops[2].src;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 1, {"must write blocks and read none"});
  plan = exchange(2, 0);
  plan.blockPool[plan.ops[0].src.begin].count = 0;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 0, {"lists 0 blocks"});
}

TEST(VerifyShape, CountsOfCopyAndReduce) {
  Plan plan = exchange(2, 0);
  plan.blockPool[plan.ops[0].src.begin] = input(0, 2);
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 0,
                 {"copy in[0..1] -> out[0]", "as many blocks", "2 to 1"});
  plan.ops[0].kind = OpKind::reduce;
  plan.blockPool[plan.ops[0].src.begin] = input(0, 1);
  plan.blockPool[plan.ops[0].dst.begin] = output(0, 2);
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 0, {"multiple", "1 to 2"});
}

TEST(VerifyShape, WriteToTheInput) {
  PlanBuilder plan;
  plan.recv({}, 1, input(1));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"rank 0 op 0 (recv in[1] from rank 1)", "writes in[1]", "read only"});
}

TEST(VerifyShape, Lanes) {
  PlanBuilder wide;
  for (int lane = 0; lane < 5; ++lane) wide.copy({.lane = lane}, input(0), output(0));
  expectRejected(kTwoRanks, againstRightOne(wide.build()), 0, -1, {"has 5 lanes", "1 to 4"});
  Plan plan = exchange(2, 0);
  plan.ops[2].lane = 1;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 2, {"(send in[1] to rank 1)", "lane 1 of 1"});
  std::vector<Plan> plans = exchange(2);
  plans[1].lanes = 3;
  expectRejected(kTwoRanks, plans, 1, -1, {"rank 1 has 3 lanes, rank 0 has 1"});
}

TEST(VerifyShape, StepBeforeTheFirst) {
  Plan plan = exchange(2, 0);
  plan.ops[1].step = -1;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 1, {"recv out[1] from rank 1", "step -1"});
}

TEST(VerifyShape, DependencyOnALaterOp) {
  PlanBuilder plan;
  plan.copy({.step = 1}, input(0), output(0), {{1}});
  plan.recv({}, 1, output(1));
  plan.send({}, 1, input(1));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 0,
                 {"depends on ops 1..1", "earlier in the plan"});
}

TEST(VerifyShape, DependencyInTheSameStep) {
  PlanBuilder plan;
  const int copied = plan.copy({}, input(0), output(0));
  plan.recv({}, 1, output(1));
  plan.send({}, 1, input(1), {{copied}});
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 0, 2,
                 {"rank 0 op 2 (send in[1] to rank 1)", "in step 0 depends on op 0",
                  "copy in[0] -> out[0]", "earlier step"});
}

TEST(VerifyShape, DependencyOfAReceive) {
  Plan plan = exchange(2, 0);
  plan.ops[1].step = 1;
  plan.depPool.push_back({0});
  plan.ops[1].deps = {0, 1};
  expectRejected(kTwoRanks, againstRightOne(plan), 0, 1,
                 {"recv out[1] from rank 1", "must depend on nothing"});
}

TEST(VerifyShape, RangesOutsideThePools) {
  Plan plan = exchange(2, 0);
  plan.ops[0].src.begin = 1000;
  expectRejected(kTwoRanks, againstRightOne(plan), 0, -1,
                 {"rank 0 op 0", "outside the plan's pool"});
  plan = exchange(2, 0);
  plan.ops[1].deps = {0, 1};
  expectRejected(kTwoRanks, againstRightOne(plan), 0, -1, {"rank 0 op 1", "dependencies outside"});
  plan = exchange(2, 0);
  plan.blockPool[0].buffer = static_cast<Buffer>(7);
  expectRejected(kTwoRanks, againstRightOne(plan), 0, -1, {"rank 0 op 0", "a buffer that is none"});
  plan = exchange(2, 0);
  plan.ops[2].kind = static_cast<OpKind>(9);
  expectRejected(kTwoRanks, againstRightOne(plan), 0, -1, {"rank 0 op 2", "no known kind"});
}

// ---- Matching ----

TEST(VerifyMatching, DroppedSend) {
  std::vector<Plan> plans = exchange(3);
  plans[1].ops.pop_back();  // send in[0] to rank 0
  expectRejected(kThreeRanks, plans, 0, 3,
                 {"rank 0 op 3 (recv out[1] from rank 1)", "meets no send of rank 1 on lane 0"});
}

TEST(VerifyMatching, DroppedReceive) {
  std::vector<Plan> plans = exchange(2);
  plans[1].ops.erase(plans[1].ops.begin() + 1);
  const auto violations = verify(kTwoRanks, plans);
  expectRejected(violations, 1, -1, {"rank 1 never writes out[0]", "must hold block 1 of rank 0"});
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_TRUE(says(violations[1], "rank 0 op 2 (send in[1] to rank 1) meets no receive of rank 1"));
}

TEST(VerifyMatching, MessageOnAnotherLane) {
  std::vector<Plan> plans = exchange(2);
  plans[0].lanes = plans[1].lanes = 2;
  plans[0].ops[2].lane = 1;
  const auto violations = verify(kTwoRanks, plans);
  expectRejected(violations, 1, 1,
                 {"rank 1 op 1 (recv out[0] from rank 0)", "no send of rank 0 on lane 0"});
  ASSERT_EQ(violations.size(), 2u);
  EXPECT_TRUE(says(violations[1], "rank 0 op 2 (send in[1] to rank 1) meets no receive"));
  EXPECT_TRUE(says(violations[1], "on lane 1"));
}

TEST(VerifyMatching, MessagesOfDifferentLength) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(0));
  plan.recv({}, 1, output(1));
  plan.send({}, 1, input(0, 2));
  expectRejected(kTwoRanks, againstRightOne(plan.build()), 1, 1,
                 {"rank 1 op 1 (recv out[0] from rank 0)", "takes 1 blocks",
                  "rank 0 op 2 (send in[0..1] to rank 1) carries 2"});
}

TEST(VerifyMatching, StepsAgainstTheOrderOfMessages) {
  const Contract contract{Collective::allGather, 2};
  const auto plan = [](int rank, int firstStep) {
    PlanBuilder plan;
    plan.copy({}, input(0), output(rank));
    const int spare = plan.scratch({1 - rank, 0});
    plan.recv({}, 1 - rank, output(1 - rank));
    plan.recv({}, 1 - rank, scratch(spare));
    plan.send({.step = firstStep}, 1 - rank, input(0));
    plan.send({}, 1 - rank, input(0));
    return plan.build();
  };
  EXPECT_EQ(text(verify(contract, std::vector{plan(0, 0), plan(1, 0)})), "");
  expectRejected(contract, {plan(0, 1), plan(1, 0)}, 0, 4,
                 {"rank 0 op 4 (send in[0] to rank 1)", "is in step 0", "in step 1"});
}

TEST(VerifyMatching, MoreMessagesThanATagCounts) {
  const Contract contract{Collective::allGather, 2};
  const auto plan = [](int rank, int messages) {
    PlanBuilder plan;
    plan.copy({}, input(0), output(rank));
    plan.recv({}, 1 - rank, output(1 - rank));
    plan.send({}, 1 - rank, input(0));
    for (int i = 1; i < messages; ++i) {
      plan.recv({}, 1 - rank, scratch(plan.scratch({1 - rank, 0})));
      plan.send({}, 1 - rank, input(0));
    }
    return plan.build();
  };
  EXPECT_EQ(text(verify(contract, std::vector{plan(0, 4096), plan(1, 4096)})), "");
  expectRejected(contract, {plan(0, 4097), plan(1, 4097)}, 0, 8193,
                 {"rank 0 op 8193", "one message more than the 4096"});
}

}  // namespace
}  // namespace moeccl::testing
