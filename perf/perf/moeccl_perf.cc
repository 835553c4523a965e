// moeccl-perf: how fast collectives, routes and layers are, for every algorithm and schedule, and
// beside MPI. See perf/perf/README.md.
#include <cstdlib>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>

#include "perf/common/job.h"
#include "perf/perf/layers.h"
#include "perf/perf/measure.h"
#include "perf/perf/report.h"
#include "perf/perf/route.h"

namespace moeccl::perf {
namespace {

constexpr int kWrongData = 1;

// The grid that is asked for. Without one, MP and ESP groups are as large as nodes, which are
// consecutive ranks under most launchers.
World worldOf(const Options& options, const Job& job) {
  World world{job.ranks(), options.grid, options.experts};
  if (!options.collective->usesGrid || world.grid.nMp > 0) return world;
  const std::vector<int> ranksPerNode = job.ranksPerNode();
  if (std::set<int>(ranksPerNode.begin(), ranksPerNode.end()).size() != 1)
    throw std::runtime_error(
        "--grid: nodes have different numbers of ranks, so MP and ESP groups cannot be nodes; "
        "give the ranks of groups, as in 2x4x2");
  const int size = ranksPerNode[0];
  world.grid = {size, job.ranks() / size, size, moecclOrderEspEp};
  return world;
}

// Returns the number of wrong elements.
std::int64_t run(const Options& options, const Job& job) {
  std::vector<std::unique_ptr<Competitor>> competitors;
  const World world = worldOf(options, job);
  for (const std::string& algorithm : options.algorithms)
    competitors.push_back(
        makeCompetitor(*options.collective, world, algorithm, job.comm(), job.memory()));
  for (const std::string& algorithm : options.mpiAlgorithms)
    competitors.push_back(job.mpi()->competitor(*options.collective, algorithm));

  std::optional<Report> report;
  if (job.rank() == 0) report.emplace(options, job, world);
  Measurement measurement(options, job, world, competitors);
  std::int64_t wrong = 0;
  for (const DataType& type : options.dataTypes) {
    for (const std::uint64_t size : options.sizes()) {
      const std::vector<Result> results = measurement.measure(size, type);
      for (const Result& result : results)
        if (result.wrong > 0) wrong += result.wrong;
      if (report) report->add(results);
    }
  }
  if (report) report->finish(wrong);
  return wrong;
}

int routeMain(int argc, char** argv) {
  const Parsed<RouteOptions> parsed = parseRouteOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-perf route", parsed)) return *code;
  Options ofJob;
  ofJob.memory = parsed.options.memory;
  return runRanks("moeccl-perf route", ofJob, [&](Job& job) {
    return measureRoutes(parsed.options, job) == 0 ? EXIT_SUCCESS : kWrongData;
  });
}

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "route") return routeMain(argc - 1, argv + 1);
  if (what == "layers") return layers::main(argc - 1, argv + 1);
  const Parsed<Options> parsed = parseOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-perf", parsed)) return *code;
  return runRanks("moeccl-perf", parsed.options, [&](Job& job) {
    return run(parsed.options, job) == 0 ? EXIT_SUCCESS : kWrongData;
  });
}

}  // namespace
}  // namespace moeccl::perf

int main(int argc, char** argv) { return moeccl::perf::main(argc, argv); }
