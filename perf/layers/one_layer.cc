// one-layer: a single MoE layer, pass after pass, for whoever watches the process, such as
// perf/scripts/profile_layer.py. Each rank prints when, by the clock that `perf record -k
// CLOCK_MONOTONIC` uses.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "perf/common/job.h"
#include "perf/common/number_checks.h"
#include "perf/common/parse.h"
#include "perf/layers/candidate.h"
#include "perf/layers/settings.h"

namespace moeccl::perf::layers {
namespace {

struct OneLayer {
  Layer layer{};
  moecclSchedule_t schedule = moecclScheduleS1;
  moecclPass_t pass = moecclPassForward;
  int passes = 5;
};

Parsed<OneLayer> parse(int argc, const char* const* argv) {
  Parsed<OneLayer> parsed;
  OneLayer& options = parsed.options;
  Layer& layer = options.layer;
  layer = {{1, 0, 1, moecclOrderEspEp}, 1, 4096, 1024, 4096, 8, 2, 1.2};
  CLI::App app("Runs one MoE layer again and again, and prints when it began and ended.",
               "one-layer");
  app.add_option("--mp", layer.grid.nMp, "ranks of an MP group")->capture_default_str();
  app.add_option("--esp", layer.grid.nEsp, "ranks of an ESP group")->capture_default_str();
  app.add_option("--tokens", layer.length, "of an MP group")->capture_default_str();
  app.add_option("--embedding", layer.embedding)->capture_default_str();
  app.add_option("--hidden", layer.hidden)->capture_default_str();
  app.add_option("--experts", layer.experts)->capture_default_str();
  app.add_option("--top-k", layer.topK)->capture_default_str();
  app.add_option("--capacity-factor", layer.capacityFactor, "0: dropless")->capture_default_str();
  std::map<std::string, moecclSchedule_t> schedules;
  for (const moecclSchedule_t schedule : everySchedule())
    schedules[scheduleName(schedule)] = schedule;
  app.add_option("--schedule", options.schedule, "as MOECCL_SCHEDULE takes it (default: S1)")
      ->transform(CLI::CheckedTransformer(schedules));
  const std::map<std::string, moecclPass_t> passes{{"forward", moecclPassForward},
                                                   {"both", moecclPassBoth}};
  app.add_option("--pass", options.pass, "forward or both (default: forward)")
      ->transform(CLI::CheckedTransformer(passes));
  app.add_option("--passes", options.passes, "how many, after one that warms up")
      ->check(kPositive)
      ->capture_default_str();
  parse(app, argc, argv, parsed);
  return parsed;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const OneLayer& options, const Job& job) {
  Layer layer = options.layer;
  if (layer.grid.nEsp > 0) layer.grid.nEp = job.ranks() / layer.grid.nEsp;
  Grids grids(job);
  LayerCandidate candidate(layer, {options.schedule, ""}, options.pass, grids);
  if (!candidate.offered()) throw std::runtime_error(candidate.reason());
  Data data(layer, candidate.shapes(), options.pass, job.rank(), 1);
  candidate.setData(data);
  candidate.run(1);
  candidate.barrier();
  const double begin = now();
  candidate.run(options.passes);
  const double end = now();
  std::printf("{\"rank\": %d, \"pid\": %d, \"passes\": %d, \"begin\": %.6f, \"end\": %.6f}\n",
              job.rank(), static_cast<int>(getpid()), options.passes, begin, end);
}

int main(int argc, char** argv) {
  const Parsed<OneLayer> parsed = parse(argc, argv);
  if (const std::optional<int> code = answered("one-layer", parsed)) return *code;
  return runRanks("one-layer", {}, [&](Job& job) {
    run(parsed.options, job);
    return EXIT_SUCCESS;
  });
}

}  // namespace
}  // namespace moeccl::perf::layers

int main(int argc, char** argv) { return moeccl::perf::layers::main(argc, argv); }
