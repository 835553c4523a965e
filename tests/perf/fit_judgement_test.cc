// Which measured times cannot be true.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "perf/fit/judgement.h"
#include "perf/fit/targets.h"

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

// What a run does with measured times: 256 B by each of `micros`, of an all-to-all of 2x4 ranks.
class FitRun {
 public:
  explicit FitRun(bool force = false) : judgement_(force) {
    judgement_.addPairs(1, sweptOf({100, 110}).points);
  }

  static Swept sweptOf(const std::vector<double>& micros) {
    Swept swept;
    for (const double each : micros)
      swept.points.push_back(
          {{&collectiveNamed("alltoall"), "linear"}, 256, {each * 1e-6, 0, 0}, true});
    return swept;
  }
  // The times that remain, in microseconds. Each turn measures the next list.
  std::vector<double> measure(const std::vector<std::vector<double>>& turns, bool again = true) {
    turns_ = 0;
    said_.clear();
    const Swept swept = judgement_.judge(
        "alltoall of 2x4 ranks", &kOfTwoNodes, [&] { return sweptOf(turns.at(turns_++)); },
        [&](const std::string& why) {
          said_ = why;
          return again;
        });
    std::vector<double> micros;
    for (const Point& point : swept.points) micros.push_back(std::round(point.seconds.value * 1e6));
    return micros;
  }
  std::string refusal() const {
    try {
      judgement_.requirePossible();
    } catch (const NoProfile& error) {
      return error.what();
    }
    return "";
  }

  Judgement judgement_;
  std::size_t turns_ = 0;  // that were measured
  std::string said_;       // before the second one
};

const std::string kWhy =
    "alltoall of 2x4 ranks, linear, 256 B: 4 us, but a pair of ranks takes 100 us";

TEST(FitJudgement, WhatCannotBeTrueIsMeasuredAgain) {
  FitRun run;
  EXPECT_EQ(run.measure({{4, 120}, {130, 140}}), (std::vector<double>{130, 140}));
  EXPECT_EQ(run.said_, kWhy);
  EXPECT_TRUE(run.judgement_.impossible().empty());
  EXPECT_EQ(run.measure({{130, 140}}), (std::vector<double>{130, 140}));
  EXPECT_EQ(run.refusal(), "");
}

TEST(FitJudgement, WhatIsAsFastAgainIsLeftOut) {
  FitRun run;
  EXPECT_EQ(run.measure({{4, 120}, {130, 4}}), std::vector<double>{130});
  EXPECT_EQ(run.judgement_.impossible(), std::vector<std::string>{kWhy});
  EXPECT_EQ(run.refusal(),
            "1 of 2 times cannot be true, such as " + kWhy +
                "; see that nothing else runs and that ranks are bound to processors as in "
                "training, or write a profile all the same by --force");
  // One of ten may be.
  EXPECT_EQ(run.measure({{1e3, 1e3, 1e3, 1e3, 1e3, 1e3, 1e3, 1e3}}).size(), 8u);
  EXPECT_EQ(run.refusal(), "");
}

TEST(FitJudgement, WithoutTimeItIsLeftOutAtOnce) {
  FitRun run;
  EXPECT_EQ(run.measure({{4, 120}}, false), std::vector<double>{120});
  EXPECT_EQ(run.turns_, 1u);
  EXPECT_EQ(run.judgement_.impossible(), std::vector<std::string>{kWhy});
}

TEST(FitJudgement, ByForceAllCounts) {
  FitRun run(true);
  EXPECT_EQ(run.measure({{4, 120}}), (std::vector<double>{4, 120}));
  EXPECT_EQ(run.turns_, 1u);
  EXPECT_EQ(run.said_, "");
  EXPECT_EQ(run.judgement_.impossible(), std::vector<std::string>{kWhy});
  EXPECT_EQ(run.refusal(), "");
}

}  // namespace
}  // namespace moeccl::perf
