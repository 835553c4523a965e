// moeccl-plan: which schedule, grid and placement is the fastest on a cluster that need not exist. See
// perf/README.md.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "perf/plan/placement.h"
#include "perf/plan/report.h"

namespace moeccl::perf {
namespace {

constexpr int kWrongArguments = 2;

void plan(const PlanOptions& options) {
  const Planner planner(options);
  const std::vector<Predicted> all = planner.rank(placementsOf(options));
  printRanking(options, all);
  if (options.explain) std::printf("\n%s", planner.explain(all[0].shape).c_str());
  if (!options.jsonFile.empty()) writeRanking(options, all);
}

int main(int argc, char** argv) {
  const PlanParsed parsed = parsePlanOptions(argc, argv);
  if (!parsed.error.empty()) {
    std::fprintf(stderr, "moeccl-plan: %s\nmoeccl-plan --help lists all options.\n",
                 parsed.error.c_str());
    return kWrongArguments;
  }
  if (!parsed.text.empty()) {
    std::fputs(parsed.text.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  try {
    plan(parsed.options);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moeccl-plan: %s\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace
}  // namespace moeccl::perf

int main(int argc, char** argv) { return moeccl::perf::main(argc, argv); }
