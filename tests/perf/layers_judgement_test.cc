// Made-up times, whose regrets are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "perf/perf/layer_outcome.h"
#include "perf/perf/layer_settings.h"

namespace moeccl::perf::layers {
namespace {

using Seconds = std::vector<double>;
constexpr auto kBaseline = moecclScheduleBaseline;
constexpr auto kS1 = moecclScheduleS1, kAuto = moecclScheduleAuto;

Timed timed(moecclSchedule_t schedule, const char* algorithms, Seconds seconds,
            moecclSchedule_t followed) {
  return {{schedule, algorithms}, followed, 1, 0, 0, std::move(seconds)};
}
Timed timed(moecclSchedule_t schedule, const char* algorithms, Seconds seconds) {
  return timed(schedule, algorithms, std::move(seconds), schedule);
}

// Each was timed by itself.
std::vector<Timed> each(std::vector<Timed> timed) {
  for (std::size_t i = 0; i < timed.size(); ++i) timed[i].timedAs = i;
  return timed;
}

// A layer on N_MP = 2, N_ESP = 4, whose model says `predicted` of `schedule`.
Outcome outcomeOf(std::vector<Timed> timed, moecclSchedule_t schedule, double predicted) {
  Outcome outcome{{{2, 2, 4, moecclOrderEspEp}, 2, 8, 16, 16, 4, 1, 1.2}, {}, {}, {}};
  outcome.measured.timed = each(std::move(timed));
  outcome.selection[kRuleModel] = {{schedule, predicted, 0, false, ""}};
  outcome.selection[kRuleParm] = {{schedule, 1, 0, false, ""}};
  outcome.best = bestOf(outcome.measured.timed);
  return outcome;
}

const Rule& ruleOf(const std::vector<Rule>& rules, const std::string& name) {
  for (const Rule& rule : rules)
    if (rule.name == name) return rule;
  throw std::invalid_argument(name);
}

TEST(LayerSettings, CoverEverySchedule) {
  const std::vector<int> nodes = {4, 4};
  Layer layer{{2, 2, 4, moecclOrderEspEp}, 2, 8, 16, 16, 4, 1, 1.2};
  Options options;
  const std::vector<Setting> all = settings(layer, options, nodes);
  for (int schedule = moecclScheduleBaseline; schedule < moecclNumSchedules; ++schedule)
    EXPECT_EQ(std::count_if(all.begin(), all.end(),
                            [&](const Setting& setting) {
                              return setting.schedule == schedule && setting.algorithms.empty();
                            }),
              1)
        << schedule;
  EXPECT_EQ(all.front().name(), "baseline");
  EXPECT_EQ(all.back().name(), "auto");
  // Every algorithm of every exchange, those of one name at once.
  std::set<std::string> names;
  for (const Setting& setting : all) EXPECT_TRUE(names.insert(setting.name()).second);
  for (const char* name :
       {"baseline allgather=linear;allreduce=linear;alltoall=linear", "baseline alltoall=pairwise",
        "S1 combine=dedup;dispatch=dedup", "S1 allgather=ring", "S2 splitdispatch=flat",
        "S2 combineallgather=pipelined"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("PPMoE allreduce=ring"));  // the layer is not offered
  layer.capacityFactor = 0;
  const std::vector<Setting> dropless = settings(layer, options, nodes);
  EXPECT_EQ(dropless[1].name(), "baseline tokenRouting=-1");
  EXPECT_EQ(dropless[2].name(), "baseline tokenRouting=1");
  EXPECT_EQ(dropless.back().name(), "auto");
}

TEST(LayerSettings, AreThoseThatAreNamed) {
  const Layer layer{{2, 2, 4, moecclOrderEspEp}, 2, 8, 16, 16, 4, 1, 1.2};
  Options options;
  EXPECT_EQ(problemOf(options.schedules), "");
  options.schedules = {"S2", "auto"};
  EXPECT_EQ(problemOf(options.schedules), "");
  const std::vector<Setting> named = settings(layer, options, {4, 4});
  ASSERT_EQ(named.size(), 2u);
  EXPECT_EQ(named[0].name(), "S2");
  EXPECT_EQ(named[1].name(), "auto");
  EXPECT_NE(problemOf({"S1", "S9"}).find("\"S9\" is none; give all or auto, baseline, S1"),
            std::string::npos);
}

TEST(LayerJudgement, BestIsTheLeastMedian) {
  std::vector<Timed> all = each({timed(kBaseline, "", {4, 5, 6}), timed(kS1, "", {9, 1, 2}),
                                 timed(kS1, "dispatch=flat", {3, 3, 3})});
  const Best best = bestOf(all);
  EXPECT_EQ(best.candidate, 1u);
  EXPECT_EQ(best.seconds, 2);
  EXPECT_EQ(best.noise, 0.2);  // of 1/5, 4/2 and 0

  // Under another name the same times say nothing more of the noise.
  for (int twins = 0; twins < 3; ++twins) {
    all.push_back(timed(kS1, "allgather=ring", {3, 3, 3}));
    all.back().timedAs = 2;
  }
  EXPECT_EQ(bestOf(all).noise, 0.2);
}

TEST(LayerJudgement, RegretIsOverTheBestMedian) {
  const std::vector<Timed> all =
      each({timed(kBaseline, "", {3, 3, 3}), timed(kS1, "", {2, 2, 2}),
            timed(kS1, "dispatch=flat", {2.5, 2.5, 2.5}), timed(kAuto, "", {2, 2, 2}, kS1)});
  const Best best = bestOf(all);
  const Verdict baseline = judge(all, best, 0);
  EXPECT_EQ(baseline.regret, 0.5);
  EXPECT_FALSE(baseline.right);
  EXPECT_FALSE(baseline.withinNoise);
  const Verdict flat = judge(all, best, 2);  // the right schedule, with slower algorithms
  EXPECT_EQ(flat.regret, 0.25);
  EXPECT_TRUE(flat.right);
  EXPECT_FALSE(flat.withinNoise);
  const Verdict automatic = judge(all, best, 3);
  EXPECT_EQ(automatic.regret, 0);
  EXPECT_TRUE(automatic.right);
  EXPECT_TRUE(automatic.withinNoise);
}

TEST(LayerJudgement, QuartilesThatTouchAreWithinNoise) {
  const std::vector<Timed> all =
      each({timed(kBaseline, "", {30, 40, 50, 60, 70}), timed(kS1, "", {10, 20, 30, 40, 50}),
            timed(kS1, "a", {80, 80, 80, 80, 80}), timed(kS1, "b", {41, 41, 41, 41, 41}),
            timed(kS1, "c", {90, 90, 90, 90, 90})});
  const Best best = bestOf(all);
  EXPECT_EQ(best.noise, 0);
  EXPECT_TRUE(judge(all, best, 0).withinNoise);  // from 40, and the best up to 40
  EXPECT_FALSE(judge(all, best, 3).withinNoise);
}

TEST(LayerJudgement, RegretsUpToTheNoiseAreWithinIt) {
  // Spreads 0, 0.105 and 0.1 of the medians: the noise is 0.1.
  const std::vector<Timed> all =
      each({timed(kBaseline, "", {1, 1, 1}), timed(kS1, "", {1.04, 1.09, 1.27}),
            timed(kS1, "a", {1.14, 1.2, 1.38})});
  const Best best = bestOf(all);
  EXPECT_NEAR(best.noise, 0.1, 1e-9);
  EXPECT_TRUE(judge(all, best, 1).withinNoise);
  EXPECT_FALSE(judge(all, best, 2).withinNoise);
}

TEST(LayerJudgement, Summary) {
  const Summary summary =
      summaryOf({{0, true, true}, {0.5, false, true}, {0.1, true, false}, {0, true, true}});
  EXPECT_EQ(summary.layers, 4u);
  EXPECT_NEAR(summary.meanRegret, 0.15, 1e-12);
  EXPECT_EQ(summary.worstRegret, 0.5);
  EXPECT_EQ(summary.right, 0.75);
  EXPECT_EQ(summary.withinNoise, 0.75);
}

TEST(LayerOutcome, RulesStandForTheirCandidates) {
  const std::vector<Rule> all = rules();
  const Outcome outcome = outcomeOf({timed(kBaseline, "", {6}), timed(kS1, "", {3}),
                                     timed(kS1, "dispatch=flat", {2}), timed(kAuto, "", {4}, kS1)},
                                    kBaseline, 7.5);
  EXPECT_EQ(verdictOf(ruleOf(all, "model"), outcome)->regret, 1);  // auto as measured
  EXPECT_EQ(verdictOf(ruleOf(all, "Algorithm 1, published"), outcome)->regret, 2);
  EXPECT_EQ(verdictOf(ruleOf(all, "always S1"), outcome)->regret, 0.5);
  EXPECT_EQ(verdictOf(ruleOf(all, "always baseline"), outcome)->regret, 2);
  // Nobody chose, or what was chosen was not measured.
  EXPECT_FALSE(verdictOf(ruleOf(all, "Algorithm 1, corrected"), outcome).has_value());
  EXPECT_FALSE(
      verdictOf({"always auto", ruleOf(all, "always S1").choose, moecclNumSchedules}, outcome)
          .has_value());
  EXPECT_EQ(disagreements({outcome}), 1u);
}

TEST(LayerOutcome, SummaryLeavesOutLayersWithoutAVerdict) {
  const Outcome both = outcomeOf({timed(kBaseline, "", {6}), timed(kS1, "", {3})}, kS1, 1);
  const Outcome one = outcomeOf({timed(kBaseline, "", {6})}, kS1, 1);
  const std::vector<Rule> all = rules();
  EXPECT_EQ(summaryOf(ruleOf(all, "always S1"), {both, one})->layers, 1u);
  EXPECT_EQ(summaryOf(ruleOf(all, "always baseline"), {both, one})->meanRegret, 0.5);
  EXPECT_FALSE(summaryOf(ruleOf(all, "always S1"), {one}).has_value());
}

TEST(LayerOutcome, PredictionErrorsAreRelativeToWhatWasMeasured) {
  const Outcome high = outcomeOf({timed(kBaseline, "", {6})}, kBaseline, 9);
  const Outcome low = outcomeOf({timed(kBaseline, "", {6})}, kBaseline, 1.5);
  EXPECT_EQ(predictionErrors(kBaseline, {high, low}), (Seconds{0.5, 0.75}));
  EXPECT_TRUE(predictionErrors(kS1, {high, low}).empty());
}

TEST(LayerOutcome, SpeedupsAreMeans) {
  const Outcome twice = outcomeOf({timed(kBaseline, "", {6}), timed(kS1, "", {3})}, kS1, 1);
  const Outcome thrice = outcomeOf({timed(kBaseline, "", {6}), timed(kS1, "", {2})}, kS1, 1);
  const std::vector<Speedups> rows = speedups({twice, thrice});
  ASSERT_EQ(rows.size(), 1u);  // S2 and auto were not measured
  EXPECT_EQ(rows[0].schedule, kS1);
  EXPECT_EQ(rows[0].nMp, 2);
  EXPECT_EQ(rows[0].nEsp, 4);
  EXPECT_EQ(rows[0].layers, 2u);
  EXPECT_EQ(rows[0].mean, 2.5);
}

}  // namespace
}  // namespace moeccl::perf::layers
