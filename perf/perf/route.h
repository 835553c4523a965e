// `moeccl-perf route`: how fast token routing is, by each algorithm.
#pragma once

#include <moeccl/moeccl.h>

#include <cstdint>
#include <vector>

#include "perf/common/job.h"
#include "perf/perf/route_options.h"

namespace moeccl::perf {

// Collective; prints a table on rank 0. Returns how many elements of this run came back wrong.
std::int64_t measureRoutes(const RouteOptions& options, const Job& job);

// The same of passes with other numbers of tokens each, of one route: what they take, and memory.
std::int64_t measureDrawn(const RouteOptions& options, const Job& job, moecclGrid_t grid,
                          const std::vector<std::int32_t>& chosen);

}  // namespace moeccl::perf
