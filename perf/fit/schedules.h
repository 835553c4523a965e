// Whole layers on a grid, under every schedule that it offers.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <functional>
#include <string>

#include "perf/fit/layers.h"

namespace moeccl::perf {

// Layers that differ in what they exchange and compute. hidden: per ESP rank; experts: per EP rank.
struct WholeKind {
  std::int64_t tokens;
  LayerKind layer;
};
std::span<const WholeKind> wholeKinds();
std::string textOf(const WholeKind& kind);

struct SchedulesMeasured {
  std::size_t unsteady = 0;  // samples
  bool cut = false;          // there was no time for it
};

// Forward and backward passes of `kind` under the grid's schedules, in turns. The grid's
// communicator chooses algorithms by what `profile` has so far. Adds samples where `profile` is not
// nullptr. Collective. Throws as takeTurns().
SchedulesMeasured measureSchedules(Team& team, const FitOptions& options, moecclGrid_t grid,
                                   const moecclGridShape_t& shape, const WholeKind& kind,
                                   double until, ProfileBuilder* profile);

}  // namespace moeccl::perf
