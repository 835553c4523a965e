// `moeccl-perf route`: how fast token routing is, by each algorithm.
#pragma once

#include "perf/common/job.h"
#include "perf/perf/route_options.h"

namespace moeccl::perf {

// Collective; prints a table on rank 0. Returns how many elements of this run came back wrong.
std::int64_t measureRoutes(const RouteOptions& options, const Job& job);

}  // namespace moeccl::perf
