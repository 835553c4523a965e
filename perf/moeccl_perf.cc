// moeccl-perf: how fast a collective is, for every algorithm and beside MPI's. See perf/README.md.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <set>

#include "perf/job.h"
#include "perf/measure.h"
#include "perf/report.h"

namespace moeccl::perf {
namespace {

constexpr int kWrongData = 1;
constexpr int kWrongArguments = 2;

// Where no grid is asked for: shards and MP groups are the nodes, if these are equally large.
World worldOf(const Options& options, const Job& job) {
  World world{job.ranks(), options.grid, options.experts};
  if (!options.collective->usesGrid || world.grid.nMp > 0) return world;
  const std::vector<int> ranksPerNode = job.ranksPerNode();
  const bool even = std::set<int>(ranksPerNode.begin(), ranksPerNode.end()).size() == 1;
  const int size = even ? ranksPerNode[0] : 1;
  world.grid = {size, job.ranks() / size, size, moecclOrderEspEp};
  return world;
}

// Returns the number of wrong elements.
std::int64_t run(const Options& options, const Job& job) {
  std::vector<std::unique_ptr<Contender>> contenders;
  const World world = worldOf(options, job);
  for (const std::string& algorithm : options.algorithms)
    contenders.push_back(makeContender(*options.collective, world, algorithm, job.comm()));
  for (const std::string& algorithm : options.mpiAlgorithms)
    contenders.push_back(job.mpi()->contender(*options.collective, algorithm));

  const std::vector<int> ranksPerNode = job.ranksPerNode();
  std::optional<Report> report;
  if (job.rank() == 0) report.emplace(options, job, world, ranksPerNode);
  Measurement measurement(options, job, world, contenders);
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

int main(int argc, char** argv) {
  const Parsed parsed = parseOptions(argc, argv);
  if (!parsed.error.empty()) {
    std::fprintf(stderr, "moeccl-perf: %s\nmoeccl-perf --help lists all options.\n",
                 parsed.error.c_str());
    return kWrongArguments;
  }
  // Help is wanted once. Not so mistakes: whoever ends first with one may have its launcher end the others.
  if (!parsed.text.empty()) {
    if (speaksForAll()) std::fputs(parsed.text.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  std::optional<Job> job;
  try {
    job.emplace(parsed.options);
    const std::int64_t wrong = run(parsed.options, *job);
    job->leave();
    return wrong == 0 ? EXIT_SUCCESS : kWrongData;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moeccl-perf: rank %d: %s\n", job ? job->rank() : 0, error.what());
    if (job) job->fail();
    return EXIT_FAILURE;
  }
}

}  // namespace
}  // namespace moeccl::perf

int main(int argc, char** argv) { return moeccl::perf::main(argc, argv); }
