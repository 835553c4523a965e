// Runs moeccl-perf layers: draws layers, skips those that are too large, and measures and reports
// the others one by one.
#include "perf/perf/layers.h"

#include <cstdlib>
#include <optional>

#include "perf/perf/layer_measure.h"
#include "perf/perf/layer_report.h"

namespace moeccl::perf::layers {
namespace {

std::vector<Layer> layersOf(const Options& options, int ranks) {
  if (!options.drawsLayers()) {
    const moecclMoeConfig_t& it = options.layer;
    moecclGridShape_t grid = options.grid;
    if (grid.nMp == 0) grid = {1, ranks, 1, moecclOrderEspEp};
    return {{grid, 1, it.tokens, it.embedding, it.hidden, it.experts, it.topK, it.capacityFactor}};
  }
  std::vector<Layer> layers = drawLayers(ranks, options.layers, options.seed, options.topK);
  for (Layer& layer : layers)
    if (options.dropless) layer.capacityFactor = 0;
  return layers;
}

void run(const Options& options, const Job& job) {
  std::optional<Report> report;
  if (job.rank() == 0) report.emplace(options, job);
  const std::vector<Layer> layers = layersOf(options, job.ranks());
  const int scale = options.scale > 0 ? options.scale : chooseScale(layers, options, job);
  if (report) report->begin(scale);
  for (const Layer& drawn : layers) {
    const Layer layer = scaled(drawn, scale);
    const double bytes = bytesOnNode(layer, options, job);
    if (bytes > options.memoryGib * (1 << 30)) {
      if (report) report->skip(layer, bytes);
      continue;
    }
    // Only this layer's: every communicator keeps the scratch memory of its largest exchange.
    Grids grids(job);
    Outcome outcome{layer,
                    measure(layer, options, job, grids),
                    selectionOf(layer, options.pass, grids.get(layer.grid, "").grid.get(), job),
                    {}};
    outcome.best = bestOf(outcome.measured.timed);
    if (report) report->add(std::move(outcome));
  }
  if (report) report->finish();
}

}  // namespace

int main(int argc, char** argv) {
  Parsed<Options> parsed = parseOptions(argc, argv);
  if (parsed.error.empty()) parsed.error = problemOf(parsed.options.schedules);
  if (const std::optional<int> code = answered("moeccl-perf layers", parsed)) return *code;
  return runRanks("moeccl-perf layers", {}, [&](Job& job) {
    run(parsed.options, job);
    return EXIT_SUCCESS;
  });
}

}  // namespace moeccl::perf::layers
