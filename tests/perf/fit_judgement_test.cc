// Which measured times cannot be true.
#include <gtest/gtest.h>

#include "perf/fit/judgement.h"

namespace moeccl::perf {
namespace {

constexpr GroupSize kInNode{4, 4}, kOfTwoNodes{8, 4};

// 100 us and 100 MB/s between nodes, 10 us inside.
PairLimits limits() {
  PairLimits limits;
  limits.add(0, 256, 12e-6);
  limits.add(0, 768, 10e-6);
  limits.add(1, 256, 100e-6);
  limits.add(1, 2'000'000, 20e-3);
  limits.add(4, 2'000'000, 40e-3);  // 4 pairs share the uplink: 1 MB each
  return limits;
}

TEST(FitJudgement, ACallTakesAsLongAsAPair) {
  EXPECT_EQ(limits().whyImpossible("allreduce", kInNode, 256, 6e-6), "");
  EXPECT_EQ(limits().whyImpossible("allreduce", kInNode, 256, 4e-6),
            "4 us, but a pair of ranks takes 10 us");
  EXPECT_EQ(limits().whyImpossible("combine", kOfTwoNodes, 256, 60e-6), "");
  EXPECT_EQ(limits().whyImpossible("combine", kOfTwoNodes, 256, 4e-6),
            "4 us, but a pair of ranks takes 100 us");
}

// Each of 4 ranks sends half of 2 MB to the other node: 4 MB pass the uplink, 40 ms at 100 MB/s.
TEST(FitJudgement, BytesAreNoFasterThanThoseOfPairs) {
  for (const char* collective : {"alltoall", "alltoallv"}) {
    EXPECT_EQ(limits().whyImpossible(collective, kOfTwoNodes, 2'000'000, 21e-3), "");
    EXPECT_EQ(limits().whyImpossible(collective, kOfTwoNodes, 2'000'000, 10e-3),
              "1e+04 us, in which 0.4 GB/s leave a node, but pairs reach 0.1 GB/s");
  }
  // Its bytes may be the same for several ranks of a node, and pass once.
  EXPECT_EQ(limits().whyImpossible("dispatch", kOfTwoNodes, 2'000'000, 10e-3), "");
  EXPECT_EQ(limits().whyImpossible("alltoall", kInNode, 2'000'000, 1e-3), "");
}

// Small exchanges of pairs are mostly latency, and tell no rate.
TEST(FitJudgement, MoreBytesThanPairsMovedAreNotJudged) {
  EXPECT_EQ(limits().whyImpossible("alltoall", kOfTwoNodes, 4'000'000, 1e-3), "");
}

TEST(FitJudgement, WithoutPairsNothingIsImpossible) {
  EXPECT_EQ(PairLimits().whyImpossible("alltoall", kOfTwoNodes, 2'000'000, 1e-9), "");
  PairLimits inNode;
  inNode.add(0, 256, 12e-6);
  EXPECT_EQ(inNode.whyImpossible("alltoall", kOfTwoNodes, 2'000'000, 1e-9), "");
}

}  // namespace
}  // namespace moeccl::perf
