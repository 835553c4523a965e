// moeccl-layers: whole MoE layers under every schedule, and how good the automatic choice of one
// is. See perf/layers/README.md.
#include <cstdlib>
#include <optional>

#include "perf/layers/measure.h"
#include "perf/layers/report.h"

namespace moeccl::perf::layers {
namespace {

std::vector<Layer> layersOf(const Options& options, int ranks) {
  std::vector<Layer> layers;
  if (options.layer.empty()) {
    layers = drawLayers(ranks, options.layers, options.seed, options.topK);
  } else {
    const std::vector<std::int64_t>& it = options.layer;
    const int esp = static_cast<int>(it[1]);
    layers.push_back({{static_cast<int>(it[0]), ranks / esp, esp, moecclOrderEspEp},
                      1,
                      it[2],
                      it[3],
                      it[4],
                      it[5],
                      options.topK,
                      1.2});
  }
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
    const double bytes = bytesOnNode(layer, options.pass, job);
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

int main(int argc, char** argv) {
  const Parsed<Options> parsed = parseOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-layers", parsed)) return *code;
  return runRanks("moeccl-layers", {}, [&](Job& job) {
    run(parsed.options, job);
    return EXIT_SUCCESS;
  });
}

}  // namespace
}  // namespace moeccl::perf::layers

int main(int argc, char** argv) { return moeccl::perf::layers::main(argc, argv); }
