#include "src/comm/plan_cache.h"

#include <string>

#include "src/comm/call.h"
#include "src/error.h"
#include "src/log.h"

namespace moeccl {

RunSlot& CachedPlan::take() {
  if (idle.empty()) {
    slots.push_back(std::make_unique<RunSlot>(plan));
    idle.reserve(slots.size());
    idle.push_back(slots.back().get());
  }
  RunSlot& slot = *idle.back();
  idle.pop_back();
  return slot;
}

CachedPlan& PlanCache::get(const AlgorithmChoice& choice, const Topology& topology, int rank) {
  for (const std::unique_ptr<CachedPlan>& cached : plans_)
    if (cached->choice == choice) return *cached;
  auto cached = std::make_unique<CachedPlan>();
  cached->choice = choice;
  cached->digest = digestOf(choice);
  cached->plan = preparePlan(choice, topology, rank);
  plans_.push_back(std::move(cached));
  return *plans_.back();
}

std::shared_ptr<const PreparedPlan> preparePlan(const AlgorithmChoice& choice,
                                                const Topology& topology, int rank) {
  const Algorithm& algorithm = *choice.algorithm;
  std::shared_ptr<const PreparedPlan> plan;
  try {
    plan = std::make_shared<PreparedPlan>(algorithm.plan(topology, choice.parameters, rank));
  } catch (const NotOffered& e) {
    throw Error(moecclInvalidUsage, std::string(nameOf(algorithm.collective)) + "=" +
                                        std::string(algorithm.name) +
                                        " is not offered here: " + e.what());
  }
  log(LogLevel::info, {rank, topology.ranks()}, "plan of %s (%s): %d ops, %zu scratch blocks",
      std::string(nameOf(algorithm.collective)).c_str(), std::string(algorithm.name).c_str(),
      plan->ops(), plan->plan().scratch.size());
  return plan;
}

}  // namespace moeccl
