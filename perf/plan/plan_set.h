// The plans that were asked for, of all ranks.
#pragma once

#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "perf/plan/options.h"

namespace moeccl::perf::plan {

struct PlanSet {
  Contract contract;
  AlgorithmChoice choice;
  Topology topology;
  std::vector<Plan> plans;  // plans[r] is rank r's
};

// Throws std::runtime_error, which names the option that is wrong and what would be right.
PlanSet plansOf(const Options& options);

// "alltoall by hierarchical among 11 ranks on 3 nodes: 96 messages, 24 of them between nodes, in 3
// steps".
std::string summaryOf(const PlanSet& set);

}  // namespace moeccl::perf::plan
