// moeccl-plan: prints, draws and verifies plans. See perf/README.md.
#include <iostream>
#include <optional>
#include <stdexcept>

#include "perf/plan/drawing.h"
#include "perf/plan/options.h"
#include "perf/plan/subject.h"
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

void printPlans(const Subject& subject, int only) {
  for (int rank = 0; rank < subject.topology.ranks(); ++rank)
    if (only < 0 || rank == only)
      printText(std::cout, subject.plans[static_cast<std::size_t>(rank)], rank);
}

void prove(const Subject& subject) {
  const std::vector<Violation> violations = verify(subject.contract, subject.plans);
  for (const Violation& violation : violations) std::cout << violation.text << '\n';
  if (!violations.empty())
    throw std::runtime_error("the plans are wrong, in " + std::to_string(violations.size()) +
                             " places");
  std::cout << "verified: every output holds what " << nameOf(subject.contract.collective)
            << " promises, in every order of execution, and nobody waits for ever\n";
}

void run(const Options& options) {
  if (options.list) return printList();
  const Subject subject = subjectOf(options);
  std::cout << summaryOf(subject) << '\n';
  if (!options.quiet) printPlans(subject, options.rank);
  if (!options.dotFile.empty()) writeDot(options.dotFile, subject.plans, options.rank);
  if (!options.svgFile.empty()) writeSvg(options.svgFile, subject.plans, options.rank);
  if (options.verify) prove(subject);
}

int main(int argc, char** argv) {
  const Parsed<Options> parsed = parseOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-plan", parsed)) return *code;
  return runAlone("moeccl-plan", [&] { run(parsed.options); });
}

}  // namespace
}  // namespace moeccl::perf::plan

int main(int argc, char** argv) { return moeccl::perf::plan::main(argc, argv); }
