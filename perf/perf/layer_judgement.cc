// Finds the best of the timed candidates, and compares a choice with it by medians and quartiles.
#include "perf/perf/layer_judgement.h"

#include <algorithm>
#include <cmath>

#include "perf/common/statistics.h"

namespace moeccl::perf::layers {

Best bestOf(const std::vector<Timed>& timed) {
  std::vector<double> medians, spreads;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    const Quartiles quartiles = quartilesOf(timed[i].seconds);
    medians.push_back(quartiles.median);
    if (timed[i].timedAs == i)
      spreads.push_back((quartiles.third - quartiles.first) / quartiles.median);
  }
  const auto least = std::min_element(medians.begin(), medians.end());
  return {static_cast<std::size_t>(least - medians.begin()), *least, quantileOf(spreads, 0.5)};
}

std::optional<std::size_t> candidateOf(const std::vector<Timed>& timed, moecclSchedule_t schedule) {
  const auto found = std::find_if(timed.begin(), timed.end(), [&](const Timed& candidate) {
    return candidate.setting.schedule == schedule && candidate.setting.choosesTheRest();
  });
  if (found == timed.end()) return std::nullopt;
  return static_cast<std::size_t>(found - timed.begin());
}

Verdict judge(const std::vector<Timed>& timed, const Best& best, std::size_t chosen) {
  const Quartiles of = quartilesOf(timed[chosen].seconds);
  const Quartiles ofBest = quartilesOf(timed[best.candidate].seconds);
  const double regret = of.median / best.seconds - 1;
  return {regret, timed[chosen].followed == timed[best.candidate].followed,
          chosen == best.candidate || of.first <= ofBest.third || regret <= best.noise};
}

Summary summaryOf(const std::vector<Verdict>& verdicts) {
  Summary summary{verdicts.size(), 0, 0, 0, 0};
  const double each = 1 / static_cast<double>(verdicts.size());
  for (const Verdict& verdict : verdicts) {
    summary.meanRegret += each * verdict.regret;
    summary.worstRegret = std::max(summary.worstRegret, verdict.regret);
    summary.right += each * verdict.right;
    summary.withinNoise += each * verdict.withinNoise;
  }
  return summary;
}

double predictionError(double predicted, double measured) {
  return std::abs(predicted - measured) / measured;
}

std::optional<double> speedupOf(const std::vector<Timed>& timed, moecclSchedule_t schedule) {
  const auto baseline = candidateOf(timed, moecclScheduleBaseline);
  const auto other = candidateOf(timed, schedule);
  if (!baseline || !other) return std::nullopt;
  return quantileOf(timed[*baseline].seconds, 0.5) / quantileOf(timed[*other].seconds, 0.5);
}

}  // namespace moeccl::perf::layers
