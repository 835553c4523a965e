// Lists the rules of choosing a schedule, judges each over all layers, and sets measured speedups
// beside those of Parm's table IV.
#include "perf/perf/layer_outcome.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "perf/common/statistics.h"

namespace moeccl::perf::layers {
namespace {

using Chosen = std::optional<std::size_t>;

Chosen firstBy(SelectionRule rule, const Outcome& outcome) {
  const std::vector<Prediction>& predictions = outcome.selection[rule];
  if (predictions.empty()) return std::nullopt;
  return candidateOf(outcome.measured.timed, predictions.front().schedule);
}

Chosen byModel(const Outcome& outcome, moecclSchedule_t) {
  return candidateOf(outcome.measured.timed, moecclScheduleAuto);
}
Chosen byParm(const Outcome& outcome, moecclSchedule_t) { return firstBy(kRuleParm, outcome); }
Chosen byCorrected(const Outcome& outcome, moecclSchedule_t) {
  return firstBy(kRuleCorrected, outcome);
}
Chosen always(const Outcome& outcome, moecclSchedule_t schedule) {
  return candidateOf(outcome.measured.timed, schedule);
}

constexpr int kS1 = moecclScheduleS1, kS2 = 3, kAuto = moecclScheduleAuto;

// Parm (INFOCOM 2024), table IV. Testbed A: 8 x RTX4090, PCIe 4.0, one node. B: 8 nodes of 4 x
// RTX2080Ti, PCIe 3.0, 100 Gb/s; two of its three columns (8, 16 and 32 GPUs) are printed in each
// row.
struct Published {
  int schedule, nMp, nEsp;
  double testbedA, testbedBFirst, testbedBSecond;
};
constexpr std::array<Published, 12> kPublished = {{
    {kS1, 2, 2, 2.10, 2.62, 2.46},
    {kS1, 2, 4, 2.24, 3.37, 2.85},
    {kS1, 4, 2, 3.72, 4.18, 4.12},
    {kS1, 4, 4, 4.19, 5.77, 5.08},
    {kS2, 2, 2, 1.99, 2.42, 2.20},
    {kS2, 2, 4, 2.41, 3.05, 2.44},
    {kS2, 4, 2, 3.21, 3.58, 3.81},
    {kS2, 4, 4, 4.12, 5.38, 4.82},
    {kAuto, 2, 2, 2.10, 2.62, 2.46},  // "Parm"
    {kAuto, 2, 4, 2.41, 3.37, 2.85},
    {kAuto, 4, 2, 3.70, 4.18, 4.12},
    {kAuto, 4, 4, 4.20, 5.77, 5.08},
}};

Speedups speedupsOf(int nMp, int nEsp, int schedule, const std::vector<Outcome>& outcomes) {
  Speedups row{nMp, nEsp, static_cast<moecclSchedule_t>(schedule), 0, {}, {}, {}, {}};
  double sum = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.layer.grid.nMp != nMp || outcome.layer.grid.nEsp != nEsp) continue;
    const auto speedup = speedupOf(outcome.measured.timed, row.schedule);
    if (!speedup) continue;
    sum += *speedup;
    ++row.layers;
  }
  if (row.layers > 0) row.measured = sum / static_cast<double>(row.layers);
  for (const Published& paper : kPublished) {
    if (paper.schedule != schedule || paper.nMp != nMp || paper.nEsp != nEsp) continue;
    row.testbedA = paper.testbedA;
    row.testbedBFirst = paper.testbedBFirst;
    row.testbedBSecond = paper.testbedBSecond;
  }
  return row;
}

}  // namespace

std::vector<Rule> rules() {
  std::vector<Rule> all = {{"model", byModel, moecclScheduleAuto},
                           {"Algorithm 1, published", byParm, moecclScheduleAuto},
                           {"Algorithm 1, corrected", byCorrected, moecclScheduleAuto}};
  for (const moecclSchedule_t schedule : everySchedule())
    all.push_back({"always " + scheduleName(schedule), always, schedule});
  return all;
}

std::optional<Verdict> verdictOf(const Rule& rule, const Outcome& outcome) {
  const Chosen chosen = rule.choose(outcome, rule.always);
  if (!chosen) return std::nullopt;
  return judge(outcome.measured.timed, outcome.best, *chosen);
}

std::optional<Summary> summaryOf(const Rule& rule, const std::vector<Outcome>& outcomes) {
  std::vector<Verdict> verdicts;
  for (const Outcome& outcome : outcomes)
    if (const auto verdict = verdictOf(rule, outcome)) verdicts.push_back(*verdict);
  if (verdicts.empty()) return std::nullopt;
  return summaryOf(verdicts);
}

std::vector<double> predictionErrors(moecclSchedule_t schedule,
                                     const std::vector<Outcome>& outcomes) {
  std::vector<double> errors;
  for (const Outcome& outcome : outcomes) {
    const auto candidate = candidateOf(outcome.measured.timed, schedule);
    if (!candidate) continue;
    for (const Prediction& prediction : outcome.selection[kRuleModel])
      if (prediction.schedule == schedule)
        errors.push_back(predictionError(
            prediction.seconds, quantileOf(outcome.measured.timed[*candidate].seconds, 0.5)));
  }
  return errors;
}

std::size_t disagreements(const std::vector<Outcome>& outcomes) {
  return static_cast<std::size_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) {
        const auto automatic = candidateOf(outcome.measured.timed, moecclScheduleAuto);
        const std::vector<Prediction>& model = outcome.selection[kRuleModel];
        return automatic && !model.empty() &&
               model.front().schedule != outcome.measured.timed[*automatic].followed;
      }));
}

std::vector<Speedups> speedups(const std::vector<Outcome>& outcomes) {
  std::set<std::pair<int, int>> groups;
  for (const Outcome& outcome : outcomes)
    groups.insert({outcome.layer.grid.nMp, outcome.layer.grid.nEsp});
  std::vector<Speedups> rows;
  for (const auto& [nMp, nEsp] : groups)
    for (const int schedule : {kS1, kS2, kAuto})
      rows.push_back(speedupsOf(nMp, nEsp, schedule, outcomes));
  return rows;
}

}  // namespace moeccl::perf::layers
