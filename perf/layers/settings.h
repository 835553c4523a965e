// Who takes part: a schedule with a setting of its algorithms.
#pragma once

#include <moeccl/moe.h>

#include <string>
#include <vector>

namespace moeccl::perf::layers {

struct Setting {
  moecclSchedule_t schedule;
  std::string algorithms;  // as in moecclConfig_t; "": the library's choice

  // "S1 dispatch=flat;combine=flat", or the schedule's alone.
  std::string name() const;
  // Nothing is fixed: what the library does by itself.
  bool isAuto() const { return schedule == moecclScheduleAuto && algorithms.empty(); }
};

// As in MOECCL_SCHEDULE.
std::string scheduleName(moecclSchedule_t schedule);
std::vector<moecclSchedule_t> everySchedule();

// Every schedule that the library has, with automatic algorithms and then with those that matter
// for it; the last is auto.
std::vector<Setting> settings();

}  // namespace moeccl::perf::layers
