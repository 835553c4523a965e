// Who is measured when.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "perf/layers/draws.h"

namespace moeccl::perf::layers {

// Every candidate has one turn, each time in another order: what came before slows some down, and
// nobody always follows the same one. Returns what `turn` returned, by candidate.
std::vector<double> inTurns(std::size_t candidates, Draws& draws,
                            const std::function<double(std::size_t)>& turn);

}  // namespace moeccl::perf::layers
