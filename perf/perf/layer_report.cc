// Prints a line for each layer as it is measured, and how long the rest will take.
#include "perf/perf/layer_report.h"

#include <cstdio>
#include <cstdlib>

#include "perf/common/statistics.h"

namespace moeccl::perf::layers {
namespace {

constexpr int kSchemaVersion = 1;

void printHead(const Run& run) {
  const Options& options = run.options;
  if (options.drawsLayers())
    std::printf("# %d layers of Parm's table III, seed %llu; L, M and H divided by %d%s\n",
                options.layers, static_cast<unsigned long long>(options.seed), run.scale,
                options.dropless ? "; dropless" : "");
  if (options.learn > 0) std::printf("# auto learned for %d steps before\n", options.learn);
  if (run.ranks > 1 && std::getenv("OPENBLAS_NUM_THREADS") == nullptr)
    std::printf("# OPENBLAS_NUM_THREADS is not set; ranks that share cores slow each other down\n");
  std::printf(
      "# %d repetitions of turns of %g ms or more, of the closest %d more. Times: ms of a %s\n",
      options.repetitions, options.turnMs, options.closeRepetitions,
      options.pass == moecclPassBoth ? "forward and a backward pass" : "forward pass");
  std::printf(
      "# on the slowest rank, median. baseline, S1, ...: with automatic algorithms. auto: nothing\n"
      "# is fixed, and what it chose. regret: of auto, over the best\n#\n");
  std::printf("# %4s %2s %3s %2s %5s %5s %5s %3s %2s %4s", "N_MP", "EP", "ESP", "B", "L", "M", "H",
              "E", "k", "f");
  for (const moecclSchedule_t schedule : everySchedule())
    std::printf(" %9s", scheduleName(schedule).c_str());
  std::printf(" %9s  %-8s %9s %7s  %s\n", "auto", "chosen", "best", "regret", "who is best");
}

void printShape(const Layer& layer) {
  std::printf("  %4d %2d %3d %2lld %5lld %5lld %5lld %3lld %2lld %4.1f", layer.grid.nMp,
              layer.grid.nEp, layer.grid.nEsp, static_cast<long long>(layer.samples),
              static_cast<long long>(layer.length), static_cast<long long>(layer.embedding),
              static_cast<long long>(layer.hidden), static_cast<long long>(layer.experts),
              static_cast<long long>(layer.topK), layer.capacityFactor);
}

void printMedian(const std::vector<Timed>& timed, moecclSchedule_t schedule) {
  const auto candidate = candidateOf(timed, schedule);
  if (candidate)
    std::printf(" %9.3f", 1e3 * quantileOf(timed[*candidate].seconds, 0.5));
  else
    std::printf(" %9s", "-");
}

// What a hypervisor did to the times, if it did anything.
void printDisturbances(const Run& run) {
  int repeated = 0, disturbed = 0;
  std::size_t turns = 0;
  for (const Outcome& outcome : run.outcomes)
    for (std::size_t i = 0; i < outcome.measured.timed.size(); ++i) {
      const Timed& timed = outcome.measured.timed[i];
      if (timed.timedAs != i) continue;
      turns += timed.seconds.size();
      repeated += timed.repeated;
      disturbed += timed.disturbed;
    }
  if (repeated + disturbed > 0)
    std::printf(
        "#\n# The host took processors away in %d of %zu turns: %d were repeated, %d count\n",
        repeated + disturbed, turns + static_cast<std::size_t>(repeated), repeated, disturbed);
}

}  // namespace

Report::Report(const Options& options, const Job& job)
    : run_{options, job.ranks(), 0, {}, {}},
      json_("moeccl-perf-layers", kSchemaVersion, options.jsonFile, options.commandLine, job) {
  json_.printHead("moeccl-perf layers");
}

void Report::begin(int scale) {
  run_.scale = scale;
  start_ = std::chrono::steady_clock::now();
  printHead(run_);
  std::fflush(stdout);
}

void Report::add(Outcome outcome) {
  const std::vector<Timed>& timed = outcome.measured.timed;
  printShape(outcome.layer);
  for (const moecclSchedule_t schedule : everySchedule()) printMedian(timed, schedule);
  printMedian(timed, moecclScheduleAuto);
  const auto automatic = candidateOf(timed, moecclScheduleAuto);
  if (automatic)
    std::printf("  %-8s", scheduleName(timed[*automatic].followed).c_str());
  else
    std::printf("  %-8s", "-");
  std::printf(" %9.3f", 1e3 * outcome.best.seconds);
  if (automatic)
    std::printf(" %6.1f%%", 100 * judge(timed, outcome.best, *automatic).regret);
  else
    std::printf(" %7s", "-");
  std::printf("  %s\n", timed[outcome.best.candidate].setting.name().c_str());
  std::fflush(stdout);
  run_.outcomes.push_back(std::move(outcome));
  showProgress();
}

void Report::skip(const Layer& layer, double bytes) {
  const double gib = bytes / (1 << 30);
  printShape(layer);
  std::printf("  skipped: it would take %.1f GiB on a node, and --memory-gib is %g\n", gib,
              run_.options.memoryGib);
  std::fflush(stdout);
  run_.skipped.push_back({layer, gib});
  showProgress();
}

void Report::showProgress() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const std::size_t done = run_.outcomes.size() + run_.skipped.size();
  if (run_.outcomes.empty()) return;
  const double each = passed.count() / static_cast<double>(run_.outcomes.size());
  const double left =
      each * static_cast<double>(static_cast<std::size_t>(run_.options.layers) - done);
  std::fprintf(stderr, "moeccl-perf layers: %zu of %d layers, about %.0f s left\n", done,
               run_.options.layers, left);
}

void Report::finish() {
  printDisturbances(run_);
  printSummaries(run_);
  json_.describe(membersOf(run_));
  json_.write();
}

}  // namespace moeccl::perf::layers
