// The local work of layers: the gate, the experts' products, what is moved.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "perf/fit/options.h"
#include "perf/fit/profile.h"
#include "perf/fit/rounds.h"

namespace moeccl::perf {

// A layer of one rank. They differ so that the terms of its time can be told from one another.
struct LayerKind {
  std::int64_t embedding, hidden, experts, topK;
  double capacityFactor;
};
std::span<const LayerKind> layerKinds();
std::string textOf(const LayerKind& kind);

struct LayersMeasured {
  std::size_t unsteady = 0;  // samples
  std::int64_t cutAt = 0;    // tokens for which there was no time; 0: none
};

// Every rank computes such a layer by itself, all at once, for ever more tokens, until one pass
// takes tens of milliseconds or Team::elapsed() is about `until`. Adds samples where `profile` is
// not nullptr. Collective. Throws as takeTurns().
LayersMeasured measureLayers(Team& team, const FitOptions& options, const LayerKind& kind,
                             double until, const std::function<void(std::int64_t)>& showTokens,
                             ProfileBuilder* profile);

}  // namespace moeccl::perf
