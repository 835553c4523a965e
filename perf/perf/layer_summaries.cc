// Prints what many layers say together: how good choices and predictions were, and mean speedups.
#include <cstdio>

#include "perf/common/statistics.h"
#include "perf/perf/layer_report.h"

namespace moeccl::perf::layers {
namespace {

void printRules(const Run& run) {
  std::vector<double> noise;
  for (const Outcome& outcome : run.outcomes) noise.push_back(outcome.best.noise);
  std::printf(
      "#\n# Choices. regret: time of the choice over that of the best candidate, less 1. right:\n"
      "# of the best one's schedule. as good: it is the best, or their times overlap from first\n"
      "# to third quartile, or its regret is no more than the noise (%.1f %% in the median)\n",
      100 * quantileOf(noise, 0.5));
  std::printf("# %-24s %7s %12s %13s %7s %9s\n", "rule", "layers", "mean regret", "worst regret",
              "right", "as good");
  for (const Rule& rule : rules()) {
    const auto summary = summaryOf(rule, run.outcomes);
    if (!summary) continue;
    std::printf("  %-24s %7zu %10.1f %% %11.1f %% %5.0f %% %7.0f %%\n", rule.name.c_str(),
                summary->layers, 100 * summary->meanRegret, 100 * summary->worstRegret,
                100 * summary->right, 100 * summary->withinNoise);
  }
  if (const std::size_t layers = disagreements(run.outcomes))
    std::printf("# auto did not follow the model's first choice in %zu layers\n", layers);
}

void printPredictions(const Run& run) {
  std::printf(
      "#\n# Predictions of the model: |predicted - measured| / measured, automatic algorithms\n");
  std::printf("# %-24s %7s %12s %13s\n", "schedule", "layers", "median", "90 % below");
  for (const moecclSchedule_t schedule : everySchedule()) {
    const std::vector<double> errors = predictionErrors(schedule, run.outcomes);
    if (!errors.empty())
      std::printf("  %-24s %7zu %10.1f %% %11.1f %%\n", scheduleName(schedule).c_str(),
                  errors.size(), 100 * quantileOf(errors, 0.5), 100 * quantileOf(errors, 0.9));
  }
}

void printSpeedups(const Run& run) {
  std::printf("#\n# Mean speedup over the baseline, as in Parm's table IV\n");
  std::printf("# %4s %4s %-9s %7s %9s\n", "N_MP", "ESP", "schedule", "layers", "speedup");
  for (const Speedups& row : speedups(run.outcomes))
    std::printf("  %4d %4d %-9s %7zu %9.2f\n", row.nMp, row.nEsp,
                scheduleName(row.schedule).c_str(), row.layers, row.mean);
}

}  // namespace

void printSummaries(const Run& run) {
  if (!run.skipped.empty())
    std::printf("#\n# %zu layers skipped: too large for --memory-gib %g\n", run.skipped.size(),
                run.options.memoryGib);
  if (run.outcomes.empty()) return;
  printRules(run);
  printPredictions(run);
  printSpeedups(run);
}

}  // namespace moeccl::perf::layers
