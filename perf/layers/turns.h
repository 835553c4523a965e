// Who is measured when.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "perf/layers/draws.h"

namespace moeccl::perf::layers {

// In each repetition every contender has one turn, each time in another order: what came before slows some
// down, and nobody always follows the same one. Returns [repetitions][contenders] of what `turn` returned
// for that contender.
std::vector<double> inTurns(std::size_t contenders, int repetitions, Draws& draws,
                            const std::function<double(std::size_t)>& turn);

// `values` [repetitions][contenders], as a list for each contender.
std::vector<std::vector<double>> byContender(const std::vector<double>& values,
                                             std::size_t contenders);

}  // namespace moeccl::perf::layers
