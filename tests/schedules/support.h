// All passes of all schedules, under all transformations.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "algorithms/schedules/schedule_registry.h"

namespace moeccl::schedules {

// What a layer may ask for.
std::vector<Options> everyOption();
// Those that a schedule offers, with names for messages.
std::vector<std::pair<std::string, Schedule>> everySchedule();

}  // namespace moeccl::schedules
