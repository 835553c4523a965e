// The local work of layers: the gate, the experts' products, what is moved.
#pragma once

#include <moeccl/model.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "perf/fit/options.h"
#include "perf/fit/rounds.h"

namespace moeccl::perf {

// A layer of one rank. They differ so that the terms of its time can be told from one another.
struct LayerKind {
  std::int64_t embedding, hidden, experts, topK;
  double capacityFactor;
};
std::span<const LayerKind> layerKinds();
std::string textOf(const LayerKind& kind);

struct LayerPoint {
  moecclMoeConfig_t config;
  moecclPass_t pass;
  Median seconds;
};

struct LayersMeasured {
  std::vector<LayerPoint> points;
  std::size_t unsteady = 0;  // samples
  std::int64_t cutAt = 0;    // tokens for which there was no time; 0: none
};

// Every rank computes such a layer by itself, all at once, for ever more tokens, until one pass
// takes tens of milliseconds or Team::elapsed() is about `until`. `grid`: of this rank alone.
// Collective. Throws as takeTurns().
LayersMeasured measureLayers(Team& team, const FitOptions& options, const LayerKind& kind,
                             moecclGrid_t grid, double until,
                             const std::function<void(std::int64_t)>& showTokens);

}  // namespace moeccl::perf
