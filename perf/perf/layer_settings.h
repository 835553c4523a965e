// Who takes part: a schedule with a setting of its algorithms, or of how rows come to experts.
#pragma once

#include <moeccl/model.h>

#include <cstdint>
#include <string>
#include <vector>

#include "perf/perf/layer_options.h"
#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {

struct Setting {
  moecclSchedule_t schedule;
  std::string algorithms;         // as in moecclConfig_t; "": the library's choice
  std::int64_t tokenRouting = 0;  // as in moecclMoeConfig_t

  // "S1 dispatch=flat;combine=flat", "S1 tokenRouting=1", or the schedule's alone.
  std::string name() const;
  // Nothing but the schedule is fixed.
  bool choosesTheRest() const { return algorithms.empty() && tokenRouting == 0; }
};

// As in MOECCL_SCHEDULE.
std::string scheduleName(moecclSchedule_t schedule);
std::vector<moecclSchedule_t> everySchedule();

// What is wrong with names of schedules, "auto" among them; "": nothing.
std::string problemOf(const std::vector<std::string>& schedules);

// options.schedules with automatic algorithms. Where these are "all": every schedule that the
// library has, with automatic algorithms and then with each of those that its exchanges can go by
// on such nodes; the last is auto. A dropless layer has both ways of its rows instead of these
// algorithms.
std::vector<Setting> settings(const Layer& layer, const Options& options,
                              const std::vector<int>& ranksPerNode);

}  // namespace moeccl::perf::layers
