// moeccl-predict: which schedule, grid and placement is the fastest on a cluster that need not
// exist. See perf/predict/README.md.
#include <cstdio>
#include <optional>

#include "perf/common/output_file.h"
#include "perf/predict/placement.h"
#include "perf/predict/report.h"

namespace moeccl::perf {
namespace {

void plan(const PredictOptions& options) {
  OutputFile json("--json", options.jsonFile);
  const Predictor predictor(options);
  const std::vector<Predicted> all = predictor.rank(placementsOf(options));
  printRanking(options, all);
  if (options.explain) std::printf("\n%s", predictor.explain(all[0].shape).c_str());
  if (!options.jsonFile.empty()) json.write(jsonOf(options, all));
}

int main(int argc, char** argv) {
  const Parsed<PredictOptions> parsed = parsePredictOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-predict", parsed)) return *code;
  return runAlone("moeccl-predict", [&] { plan(parsed.options); });
}

}  // namespace
}  // namespace moeccl::perf

int main(int argc, char** argv) { return moeccl::perf::main(argc, argv); }
