// Small layers on all kinds of grids, with random routings.
#pragma once

#include <random>
#include <vector>

#include "src/verify/verify_schedule.h"

namespace moeccl::schedules {

// Grids of up to `most` ranks, in both orders, MP groups of every size that there can be.
std::vector<Grid> gridsUpTo(int most);

// Whether a layer can have both the grid and the schedule.
bool applies(const Schedule& schedule, const Grid& grid);

// A layer that the schedule applies to: tokens from none to a few, experts from hot to unused,
// capacity from what drops nearly all choices to what drops none.
RoutedLayer randomLayer(const Schedule& schedule, const Grid& grid, std::mt19937& random);

}  // namespace moeccl::schedules
