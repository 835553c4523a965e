// Every way to spoil a schedule by one small change.
#pragma once

#include <functional>
#include <string_view>

#include "algorithms/schedules/schedule.h"

namespace moeccl::schedules {

struct Mutant {
  std::string_view kind;  // "drop phase"
  int phase = -1;         // of the original, if it is of one
  int table = -1;
  Schedule schedule;
};

void forEachMutant(const Schedule& schedule, const std::function<void(const Mutant&)>& seen);

}  // namespace moeccl::schedules
