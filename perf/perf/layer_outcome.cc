// Lists the rules of choosing a schedule, judges each over all layers, and takes the mean of
// speedups.
#include "perf/perf/layer_outcome.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>

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

// S1, S2 and auto.
constexpr std::array kCompared = {moecclScheduleS1, moecclScheduleS2, moecclScheduleAuto};

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
  // By N_MP, N_ESP and schedule.
  std::map<std::tuple<int, int, moecclSchedule_t>, std::vector<double>> all;
  for (const Outcome& outcome : outcomes)
    for (const moecclSchedule_t schedule : kCompared)
      if (const auto speedup = speedupOf(outcome.measured.timed, schedule))
        all[{outcome.layer.grid.nMp, outcome.layer.grid.nEsp, schedule}].push_back(*speedup);
  std::vector<Speedups> rows;
  for (const auto& [row, values] : all) {
    const auto& [nMp, nEsp, schedule] = row;
    const auto layers = static_cast<double>(values.size());
    rows.push_back({nMp, nEsp, schedule, values.size(),
                    std::accumulate(values.begin(), values.end(), 0.0) / layers});
  }
  return rows;
}

}  // namespace moeccl::perf::layers
