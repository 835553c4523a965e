// Which contenders do the same: one name for what has one plan.
#pragma once

#include <moeccl/moe.h>

#include <string>
#include <vector>

namespace moeccl::perf::layers {

// Of a grid: how large its groups are, and whether each has all of its ranks on one node.
struct GroupSizes {
  int nMp = 1, nEp = 1, nEsp = 1;
  bool mpInNodes = false, espInNodes = false;
};

// The schedule and its exchanges, `passes` being moecclScheduleChoice_t::exchanges of one pass each, with the same text for
// what sends the same: that of S1 for S2 where MP groups have one rank and there is nothing to gather, dedup's where ESP
// groups have one and flat sends nothing twice, linear's among two ranks, and where all of an all-gather's are on one node.
// tests/perf/layers_plan_names_test.cc holds it against the plans.
std::string nameOfPlans(moecclSchedule_t schedule, const std::vector<std::string>& passes,
                        const GroupSizes& groups);

}  // namespace moeccl::perf::layers
