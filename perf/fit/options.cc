// Reads the arguments of moeccl-fit, checks them together, and lists the grids that are measured.
#include "perf/fit/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "perf/common/collectives.h"
#include "perf/common/options.h"
#include "perf/fit/targets.h"
#include "perf/perf/options.h"

namespace moeccl::perf {
namespace {

const char* const kDescription =
    "Measures what collectives and layers cost on the cluster that its ranks span, and writes\n"
    "the profile by which the library chooses algorithms and schedules (MOECCL_PROFILE). Ranks\n"
    "come from `moeccl-lab run`, from any launcher that sets MOECCL_RANK, MOECCL_NRANKS and\n"
    "MOECCL_ID_FILE, or from mpirun. Start them as the ranks of a training run are: as many,\n"
    "bound and threaded alike.\n"
    "\n"
    "All groups of a collective make the same call at once; the slowest rank counts. Sizes\n"
    "grow by factors of 3; where another algorithm becomes the fastest, one more lies between.\n"
    "Algorithms take turns in each repetition, in shuffled order. One that was more than 4 times\n"
    "slower than the fastest at two sizes one after the other, and did not catch up, is not\n"
    "measured at larger ones; sizes at which the fastest did not take twice as long as at the\n"
    "one before do not count. perf/fit/README.md says what is measured.\n"
    "\n"
    "What was measured beside other programs, or cannot be true, is measured again. If that\n"
    "goes on there is an error, and no profile.";

bool same(const moecclGridShape_t& a, const moecclGridShape_t& b) {
  return a.nMp == b.nMp && a.nEp == b.nEp && a.nEsp == b.nEsp && a.order == b.order;
}

void addGrid(std::vector<moecclGridShape_t>& grids, moecclGridShape_t shape) {
  // Where there is one group only, its ranks are consecutive under both orders.
  if (shape.nEp == 1 || shape.nEsp == 1) shape.order = moecclOrderEspEp;
  if (std::ranges::none_of(grids, [&](const auto& known) { return same(known, shape); }))
    grids.push_back(shape);
}

void checkTogether(const CLI::App& app, const FitOptions& options) {
  if (options.maxBytes > 0 && options.minBytes > options.maxBytes)
    throw CLI::ValidationError("--min-bytes", "the smallest size, " +
                                                  std::to_string(options.minBytes) +
                                                  ", is above the largest, --max-bytes " +
                                                  std::to_string(options.maxBytes));
  if (options.maxBytes == 0 && options.minBytes > kLargestByDefault)
    throw CLI::ValidationError("--min-bytes",
                               "the smallest size, " + std::to_string(options.minBytes) +
                                   ", is above the largest without --max-bytes, 64M; give both");
  if (!options.refitFile.empty())
    for (const char* name : {"--collectives", "--min-bytes", "--max-bytes", "--budget", "--steady",
                             "--max-repetitions", "--alternatives", "--memory", "--force"})
      if (app.count(name) > 0)
        throw CLI::ValidationError(name, "nothing is measured with --refit; give one of the two");
  for (const char* name : {"MOECCL_ALGO", "MOECCL_SCHEDULE", "MOECCL_PROFILE"}) {
    const char* const value = std::getenv(name);
    if (options.refitFile.empty() && value != nullptr && *value != '\0')
      throw CLI::ValidationError(name, "it is set and would decide what is measured; unset it");
  }
}

}  // namespace

std::vector<moecclGridShape_t> gridsFor(const FitOptions& options, int ranks) {
  std::vector<moecclGridShape_t> grids;
  for (const moecclGridShape_t& shape : options.grids) {
    if (std::int64_t{shape.nEp} * shape.nEsp != ranks || ranks % shape.nMp != 0)
      throw std::runtime_error("--grids: \"" + textOf(shape) + "\" is not for " +
                               std::to_string(ranks) +
                               " ranks: the second times the third must be that number, and the "
                               "first divide it");
    addGrid(grids, shape);
  }
  if (!options.grids.empty()) return grids;
  for (int nEsp : {1, 2, 4, 8})
    for (int nMp : {1, 2, 4, 8}) {
      if (ranks % nMp != 0 || ranks % nEsp != 0) continue;
      addGrid(grids, {nMp, ranks / nEsp, nEsp, moecclOrderEspEp});
      if (options.bothOrders) addGrid(grids, {nMp, ranks / nEsp, nEsp, moecclOrderEpEsp});
    }
  return grids;
}

Parsed<FitOptions> parseFitOptions(int argc, const char* const* argv) {
  Parsed<FitOptions> parsed;
  FitOptions& options = parsed.options;
  std::vector<std::string> grids;
  CLI::App app(kDescription, "moeccl-fit");
  app.add_option("-o,--output", options.outputFile, "the profile")->capture_default_str();
  app.add_option("--budget", options.budgetSeconds,
                 "seconds that the whole run may take; what was cut for it is said in the end.\n"
                 "Up to half of it is spent on waiting while other programs keep the processors "
                 "busy")
      ->check(kPositive)
      ->capture_default_str();
  app.add_flag("--force", options.force,
               "write a profile even of a busy machine, or with impossible times; it says so");
  app.add_option(
         "--grids", grids,
         "2x4x2,...: ranks of an MP, an EP and an ESP group; 2x4x2:ep where EP groups are\n"
         "consecutive (default: all with MP and ESP groups of 1, 2, 4 and 8 ranks; groups that\n"
         "look alike are measured once)")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_flag("--both-orders", options.bothOrders,
               "of these, also those whose EP groups are consecutive ranks")
      ->excludes("--grids");
  app.add_option("--collectives", options.collectives,
                 "measure these alone, and no layers: for programs that call collectives "
                 "themselves, as in\n"
                 "alltoall,alltoallv (default: all that MoE layers use)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(measurableCollectives()));
  app.add_option("--min-bytes", options.minBytes, "smallest size of a rank's send buffer, as in 1K")
      ->transform(kSize & kPositive)
      ->capture_default_str();
  app.add_option("--max-bytes", options.maxBytes,
                 "largest one (default: 64M, but no call longer than about a second)")
      ->transform(kSize & kPositive);
  app.add_option("--steady", options.steadyPercent,
                 "repeat until the median is known within so many per cent")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--max-repetitions", options.maxRepetitions, "but not more often")
      ->check(CLI::Range(3, 1000))
      ->capture_default_str();
  app.add_option("--alternatives", options.alternatives,
                 "measure the so many algorithms of a collective that are likely to be the fastest")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option(
         "--refit", options.refitFile,
         "measure nothing: fit the samples of this profile again, in one process (--grids is\n"
         "for --map then)")
      ->check(CLI::ExistingFile);
  addMemoryOption(app, options.memory);
  app.add_option("--map", options.mapFile,
                 "also write which schedule is the fastest where, as JSON for plot_profile.py")
      ->excludes("--collectives");
  parse(app, argc, argv, parsed, [&] {
    for (const std::string& text : grids) options.grids.push_back(readGrid("--grids", text));
    checkTogether(app, options);
  });
  return parsed;
}

}  // namespace moeccl::perf
