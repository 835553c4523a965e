// moeccl-plan: prints, draws and verifies plans, and predicts layers. See perf/plan/README.md.
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "algorithms/schedules/schedule_registry.h"
#include "perf/plan/drawing.h"
#include "perf/plan/options.h"
#include "perf/plan/plan_set.h"
#include "perf/plan/predict.h"
#include "src/verify/verify.h"

namespace moeccl::perf::plan {
namespace {

void printList() {
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    std::cout << nameOf(collective) << (needsGrid(collective) ? " (of a grid)\n" : "\n");
    for (const Algorithm& algorithm : algorithms())
      if (algorithm.collective == collective)
        std::cout << "  " << algorithm.name << ": " << algorithm.description << '\n';
  }
}

void printPlans(const PlanSet& set, int only) {
  for (int rank = 0; rank < set.topology.ranks(); ++rank)
    if (only < 0 || rank == only)
      printText(std::cout, set.plans[static_cast<std::size_t>(rank)], rank);
}

void prove(const PlanSet& set) {
  const std::vector<Violation> violations = verify(set.contract, set.plans);
  for (const Violation& violation : violations) std::cout << violation.text << '\n';
  if (!violations.empty())
    throw std::runtime_error("the plans are wrong, in " + std::to_string(violations.size()) +
                             " places");
  std::cout << "verified: every output holds what " << nameOf(set.contract.collective)
            << " promises, in every order of execution, and nobody waits for ever\n";
}

// As --dot and --svg ask: what printDot() draws.
template <typename... Drawn>
void draw(const Options& options, const Drawn&... drawn) {
  if (options.dotFile.empty() && options.svgFile.empty()) return;
  std::ostringstream graph;
  printDot(graph, drawn...);
  if (!options.dotFile.empty()) writeDot(options.dotFile, graph.str());
  if (!options.svgFile.empty()) writeSvg(options.svgFile, graph.str());
}

void printSchedule(const Options& options) {
  const schedules::Entry* const entry = schedules::find(options.schedule);
  if (entry == nullptr) {
    std::string names;
    for (const schedules::Entry& other : schedules::registry())
      (names += names.empty() ? "" : ", ") += other.name;
    throw std::runtime_error("--schedule is " + options.schedule + "; it must be one of " + names);
  }
  const schedules::Options layer{options.dropless, options.residual, options.chunks,
                                 options.tokenRouting};
  const schedules::Schedule forward = schedules::scheduleOf(*entry, Pass::forward, layer);
  printText(std::cout, forward);
  printText(std::cout, schedules::scheduleOf(*entry, Pass::backward, layer));
  draw(options, forward);
}

void run(const Options& options) {
  if (options.list) return printList();
  if (!options.schedule.empty()) return printSchedule(options);
  const PlanSet set = plansOf(options);
  std::cout << summaryOf(set) << '\n';
  if (!options.quiet) printPlans(set, options.rank);
  draw(options, std::span<const Plan>(set.plans), set.topology, summaryOf(set), options.rank);
  if (options.verify) prove(set);
}

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "predict") return predictMain(argc - 1, argv + 1);
  const Parsed<Options> parsed = parseOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-plan", parsed)) return *code;
  return runAlone("moeccl-plan", [&] { run(parsed.options); });
}

}  // namespace
}  // namespace moeccl::perf::plan

int main(int argc, char** argv) { return moeccl::perf::plan::main(argc, argv); }
