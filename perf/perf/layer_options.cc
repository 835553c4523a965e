// Reads the arguments of moeccl-perf layers, and refuses environment variables that would make all
// candidates alike.
#include "perf/perf/layer_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "perf/common/options.h"
#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {
namespace {

std::string checkScale(const std::string& text) {
  for (int scale = 1; scale <= kLargestScale; scale *= 2)
    if (text == std::to_string(scale)) return "";
  return text + " is no power of two up to " + std::to_string(kLargestScale);
}

// Candidates fix both by themselves, and these would override them all.
void checkEnvironment() {
  for (const char* variable : {"MOECCL_ALGO", "MOECCL_SCHEDULE"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0')
      throw CLI::ValidationError(variable, "it is set, to " + std::string(value) +
                                               ", and would make all candidates alike; unset it");
  }
}

}  // namespace

Parsed<Options> parseOptions(int argc, const char* const* argv) {
  Parsed<Options> parsed;
  Options& options = parsed.options;
  options.commandLine.assign(argv, argv + argc);

  CLI::App app(
      "Runs MoE layers drawn from Parm's table III under every schedule and the algorithms that "
      "matter,\nin turns, and says how good the library's automatic choice is. Ranks come as in "
      "moeccl-perf.\n  moeccl-lab run --no-prefix -- moeccl-perf layers --layers 9 --scale 32\n"
      "perf/perf/LAYERS.md describes what is printed and the JSON.",
      "moeccl-perf layers");
  app.add_option("--schedules", options.schedules,
                 "all, with each of their algorithms; or S1,auto,...: these, with automatic ones")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("all");
  auto* layers = app.add_option("-l,--layers", options.layers, "how many layers to draw")
                     ->check(CLI::Range(1, 100000))
                     ->capture_default_str();
  app.add_option("--seed", options.seed, "of the draws, the weights, the tokens and the turns")
      ->check(kNotNegative)
      ->capture_default_str();
  auto* scale = app.add_option("--scale", options.scale,
                               "a power of two by which L, M and H are divided, up to 128\n"
                               "(default: chosen by --layer-seconds)")
                    ->check(CLI::Validator(checkScale, "1,2,4..128"));
  app.add_option("--layer-seconds", options.layerSeconds,
                 "how long a rather large layer may take with all its turns")
      ->check(kPositive)
      ->excludes(scale)
      ->capture_default_str();
  auto* topK =
      app.add_option("--top-k", options.topK, "experts per token (default: drawn from 1 and 2)")
          ->check(CLI::Range(1, 64));
  auto* dropless = app.add_flag("--dropless", options.dropless,
                                "the layers have no capacity; candidates differ in token routing");
  auto* layer = addLayerOption(app, options.layer);
  layer->excludes(layers)->excludes(scale)->excludes(topK)->excludes(dropless);
  addGridOption(app, options.grid, "of --layer (default: all ranks are one EP group)")
      ->needs(layer);
  addPassOption(app, options.pass, {"forward", "both"});
  app.add_option("--learn", options.learn,
                 "steps in which the layers of auto learn (config.learn) before they are timed")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("-r,--repetitions", options.repetitions,
                 "how often each candidate has its turn, each time in another order")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--close-repetitions", options.closeRepetitions,
                 "further turns of those that took up to 1.3 times as long as the fastest")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--turn-ms", options.turnMs, "how long a turn takes at least")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--memory-gib", options.memoryGib,
                 "layers that would take more on one node, over all its ranks, are skipped")
      ->check(kPositive)
      ->capture_default_str();
  addJsonOption(app, options.jsonFile);
  app.add_option("--note", options.note, "goes into the JSON: what links the ranks have, say");

  parse(app, argc, argv, parsed, [&] {
    checkEnvironment();
    if (!options.drawsLayers()) options.layers = options.scale = 1;
  });
  return parsed;
}

}  // namespace moeccl::perf::layers
