// moeccl-fit: what collectives and layers cost on a cluster, as a profile. See perf/fit/README.md.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "perf/fit/benchmark_run.h"
#include "perf/fit/map.h"
#include "perf/fit/table.h"

namespace moeccl::perf {
namespace {

constexpr int kInterrupted = 130;  // as shells have it
const char* const kOneRank =
    "moeccl-fit: this is one rank, without links: it measures the local work of layers alone. "
    "Start as many\nranks as will train, as in\n"
    "  mpirun -np 16 moeccl-fit\n"
    "  moeccl-lab run --emulate 2x4 -- moeccl-fit\n";

void tell(const FitOptions& options, const BenchmarkRun& run, const ProfileBuilder& profile,
          double seconds) {
  std::fputs(tableOf(options.outputFile).c_str(), stdout);
  std::printf("%zu samples in %s min, written to %s\n", profile.samples(),
              textOfSeconds(seconds).c_str(), options.outputFile.c_str());
  if (run.unsteady() > 0)
    std::printf("%zu medians are known less well than within %g %%\n", run.unsteady(),
                options.steadyPercent);
  if (run.omitted().empty()) return;
  std::printf(
      "Not measured: beyond the last size times grow as prices do; without any, plans are priced\n"
      "(a larger --budget, fewer --grids):\n");
  for (const std::string& text : run.omitted()) std::printf("  %s\n", text.c_str());
}

// Before anything is measured for them.
void requireFilesWritable(const FitOptions& options) {
  requireWritable("--output", options.outputFile);
  if (!options.mapFile.empty()) requireWritable("--map", options.mapFile);
}

// Samples of a profile that is there, in this process alone.
void refit(const FitOptions& options) {
  requireFilesWritable(options);
  ProfileBuilder profile = ProfileBuilder::load(options.refitFile);
  std::vector<int> ranksPerNode;
  std::vector<moecclGridShape_t> shapes;
  if (!options.mapFile.empty()) {
    ranksPerNode = ranksPerNodeOf(options.refitFile);
    shapes = gridsFor(options, std::accumulate(ranksPerNode.begin(), ranksPerNode.end(), 0));
  }
  profile.fit();
  profile.save(options.outputFile);
  if (!options.mapFile.empty()) writeMap(options.mapFile, profile.get(), ranksPerNode, shapes);
  std::fputs(tableOf(options.outputFile).c_str(), stdout);
  std::printf("%s, fitted again, written to %s\n", options.refitFile.c_str(),
              options.outputFile.c_str());
}

void measure(const FitOptions& options, const Job& job) {
  const bool writes = job.rank() == 0;
  if (writes) requireFilesWritable(options);
  if (job.ranks() == 1) std::fputs(kOneRank, stderr);
  Team team(job);
  ProfileBuilder profile = ProfileBuilder::of(job);
  BenchmarkRun run(options, team);
  run.run(profile);
  if (!writes) return;
  if (profile.samples() == 0)
    throw std::runtime_error("nothing was measured, so " + options.outputFile +
                             " is not written: " + run.whyNothing());
  profile.fit();
  profile.save(options.outputFile, team.elapsed(), run.doubts());
  tell(options, run, profile, team.elapsed());
  if (!options.mapFile.empty())
    writeMap(options.mapFile, profile.get(), job.ranksPerNode(), run.shapes());
}

int main(int argc, char** argv) {
  const Parsed<FitOptions> parsed = parseFitOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-fit", parsed)) return *code;
  const FitOptions& options = parsed.options;
  // What it measures first must not depend on what a probe found.
  setenv("MOECCL_PROBE", "0", 1);
  if (!options.refitFile.empty()) return runAlone("moeccl-fit", [&] { refit(options); });
  Options common;
  common.memory = options.memory;
  return runRanks("moeccl-fit", common, [&](Job& job) {
    try {
      measure(options, job);
    } catch (const Interrupted&) {
      if (job.rank() == 0) std::fputs("moeccl-fit: interrupted; nothing was written\n", stderr);
      return kInterrupted;
    } catch (const NoProfile& error) {
      if (job.rank() == 0)
        std::fprintf(stderr, "moeccl-fit: %s; %s is not written\n", error.what(),
                     options.outputFile.c_str());
      return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
  });
}

}  // namespace
}  // namespace moeccl::perf

int main(int argc, char** argv) { return moeccl::perf::main(argc, argv); }
