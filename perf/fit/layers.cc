// Times the passes of layers of several kinds, on each rank alone, with more and more tokens until
// passes get long.
#include "perf/fit/layers.h"

#include <array>
#include <cstdio>

#include "perf/fit/measured_layer.h"

namespace moeccl::perf {
namespace {

constexpr std::array kKinds = {
    LayerKind{256, 512, 8, 2, 1},    //
    LayerKind{64, 128, 8, 1, 1},     // small: what a layer costs in any case
    LayerKind{1024, 1024, 4, 2, 1},  // the experts' products
    LayerKind{256, 2048, 8, 2, 1},   //
    LayerKind{512, 64, 64, 2, 1},    // the gate
    LayerKind{1024, 64, 8, 1, 1},    // what is moved
    LayerKind{256, 512, 8, 4, 1},    //
    LayerKind{256, 512, 8, 2, 2},    // empty places
};

constexpr std::int64_t kFewestTokens = 64, kMostTokens = 1 << 16, kStep = 2;
constexpr double kLongestPass = 0.1, kBlockSeconds = 10e-3;

}  // namespace

std::span<const LayerKind> layerKinds() { return kKinds; }

std::string textOf(const LayerKind& kind) {
  std::string text = "layer of M " + std::to_string(kind.embedding) + ", H " +
                     std::to_string(kind.hidden) + ", E " + std::to_string(kind.experts) + ", k " +
                     std::to_string(kind.topK);
  if (kind.capacityFactor == 1) return text;
  std::array<char, 32> factor{};
  std::snprintf(factor.data(), factor.size(), ", f %g", kind.capacityFactor);
  return text += factor.data();
}

LayersMeasured measureLayers(Team& team, const FitOptions& options, const LayerKind& kind,
                             moecclGrid_t grid, double until,
                             const std::function<void(std::int64_t)>& showTokens) {
  LayersMeasured measured;
  double last = 0;  // seconds of all passes
  for (std::int64_t tokens = kFewestTokens; tokens <= kMostTokens; tokens *= kStep) {
    if (last * kStep > kLongestPass) break;
    const double now = team.elapsed();
    if (now + last * kStep * kMinCalls >= until) {
      measured.cutAt = tokens;
      break;
    }
    showTokens(tokens);
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = tokens;
    config.embedding = kind.embedding;
    config.hidden = kind.hidden;
    config.experts = kind.experts;
    config.topK = kind.topK;
    config.capacityFactor = kind.capacityFactor;
    config.training = 1;
    config.schedule = moecclScheduleS1;  // the only choice: there is nothing to exchange
    MeasuredLayer layer(grid, config, team.job().memory());
    std::vector<Turn> turns;
    for (const TimedPass& pass : kTimedPasses)
      turns.push_back({[&layer, &pass] { (layer.*pass.run)(); }});
    takeTurns(team, turns,
              {options.steadyPercent, options.maxRepetitions, now + (until - now) / 2,
               Calls::independent, kBlockSeconds},
              true);
    last = 0;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const Median seconds = medianOf(turns[i].seconds);
      measured.points.push_back({config, kTimedPasses[i].pass, seconds});
      measured.unsteady += !turns[i].steady;
      last += seconds.value;
    }
  }
  return measured;
}

}  // namespace moeccl::perf
