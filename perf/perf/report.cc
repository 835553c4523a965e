// Prints a line for each size and algorithm as it is measured, and writes the same as JSON in the
// end.
#include "perf/perf/report.h"

#include <cstdio>
#include <numeric>

namespace moeccl::perf {
namespace {

using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

ordered_json toJson(const Result& result, const Result& reference) {
  return {
      {"size", result.size},
      {"block", result.block},
      {"count", result.count},
      {"type", result.type},
      {"algorithm", result.competitor->name()},
      {"inPlace", result.inPlace},
      {"timesUs", result.times},
      {"timeUs", toJson(spreadOf(result.times))},
      {"algbwGBs", result.algorithmBandwidth},
      {"busbwGBs", result.busBandwidth},
      {"wrong", result.wrong < 0 ? ordered_json() : ordered_json(result.wrong)},
      {"reference", reference.competitor->name()},
      {"ratio", toJson(ratioOf(reference.times, result.times))},
  };
}

ordered_json gridToJson(const Options& options, const World& world) {
  if (!options.collective->usesGrid) return {};
  ordered_json json = perf::toJson(world.grid);
  json["experts"] = world.experts;
  return json;
}

void printResult(const Result& result, const Result& reference) {
  const Spread time = spreadOf(result.times);
  const Spread ratio = ratioOf(reference.times, result.times);
  const std::string wrong = result.wrong < 0 ? "N/A" : std::to_string(result.wrong);
  std::printf("  %9.2f %9.2f %9.2f %7.3f %7.3f %6s %6.2f %5.2f %5.2f", time.median, time.min,
              time.max, result.algorithmBandwidth, result.busBandwidth, wrong.c_str(), ratio.median,
              ratio.min, ratio.max);
}

}  // namespace

Report::Report(const Options& options, const Job& job, const World& world)
    : options_(options),
      json_("moeccl-perf", kSchemaVersion, options.jsonFile, options.commandLine, job) {
  json_.describe({
      {"iterations", options.iterations},
      {"warmupIterations", options.warmupIterations},
      {"repetitions", options.repetitions},
      {"collective", options.collective->name},
      {"mpiVersion",
       options.mpiAlgorithms.empty() ? ordered_json() : ordered_json(job.mpi()->version())},
      {"grid", gridToJson(options, world)},
      {"checkIterations", options.checkIterations},
      {"average", static_cast<int>(options.average)},
      {"results", ordered_json::array()},
  });

  json_.printHead("moeccl-perf");
  std::printf("# %s, %s\n", options.collective->name.data(),
              options.collective->description.data());
  if (options.collective->usesGrid)
    std::printf(
        "# grid: MP groups of %d, EP of %d, ESP of %d ranks, %s consecutive; experts per rank: "
        "%d\n",
        world.grid.nMp, world.grid.nEp, world.grid.nEsp,
        world.grid.order == moecclOrderEspEp ? "those of ESP" : "those of EP", world.experts);
  if (!options.mpiAlgorithms.empty()) std::printf("# %s\n", job.mpi()->version().c_str());
  std::printf(
      "# %d repetitions of %d + %d calls each, in turns; time: median, min, max of the "
      "repetitions\n",
      options.repetitions, options.warmupIterations, options.iterations);
  std::printf("# faster: %s's time by this one's in the same repetition; median, min, max\n",
              options.mpiAlgorithms.empty() ? options.algorithms.front().c_str()
                                            : "the fastest MPI algorithm");
  printHead();
}

void Report::printHead() const {
  const bool inPlace = options_.collective->inPlaceBlock != nullptr;
  const char* const names = "  %9s %9s %9s %7s %7s %6s %6s %5s %5s";
  std::printf("#\n# %10s %10s %12s %8s %-18s  %-62s %18s\n", "", "", "", "", "", "out-of-place",
              inPlace ? "in-place" : "(in-place: N/A)");
  std::printf("# %10s %10s %12s %8s %-18s", "size", "block", "count", "type", "algorithm");
  for (int i = 0; i < 1 + inPlace; ++i)
    std::printf(names, "time", "min", "max", "algbw", "busbw", "#wrong", "faster", "min", "max");
  std::printf("\n# %10s %10s %12s %8s %-18s", "(B)", "(B)", "(elements)", "", "");
  for (int i = 0; i < 1 + inPlace; ++i)
    std::printf(names, "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", "", "", "");
  std::printf("\n");
}

void Report::add(const std::vector<Result>& results) {
  for (const Result& result : results) {
    const Result& reference = results[result.reference];
    if (!result.inPlace)
      std::printf("%s%12zu %10zu %12zu %8s %-18s", &result == results.data() ? "" : "\n",
                  result.size, result.block, result.count, result.type,
                  result.competitor->name().c_str());
    printResult(result, reference);
    json_.add(toJson(result, reference));
    if (!result.competitor->isMpi()) busBandwidths_.push_back(result.busBandwidth);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void Report::finish(std::int64_t wrong) {
  if (options_.checkIterations > 0)
    std::printf("# Out of bounds values : %lld %s\n", static_cast<long long>(wrong),
                wrong == 0 ? "OK" : "FAILED");
  const double sum = std::accumulate(busBandwidths_.begin(), busBandwidths_.end(), 0.0);
  std::printf("# Avg bus bandwidth    : %g\n", sum / static_cast<double>(busBandwidths_.size()));
  json_.write();
}

}  // namespace moeccl::perf
