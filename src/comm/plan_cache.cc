// Makes plans at their first use, and hands out idle runs of them.
#include "src/comm/plan_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/comm/call.h"

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
  for (const std::shared_ptr<CachedPlan>& cached : plans_)
    if (!cached->own && cached->choice == choice) return *cached;
  auto cached = std::make_shared<CachedPlan>();
  cached->choice = choice;
  cached->digest = digestOf(choice);
  cached->plan = preparePlan(choice, topology, rank);
  plans_.push_back(std::move(cached));
  return *plans_.back();
}

void PlanCache::add(const std::shared_ptr<CachedPlan>& own) {
  if (std::ranges::find(plans_, own) == plans_.end()) plans_.push_back(own);
}

void PlanCache::drop(const CachedPlan& own) {
  std::erase_if(plans_, [&](const auto& plan) { return plan.get() == &own; });
}

PlanName::PlanName(std::string name) : text(std::move(name)), digest(text.size()) {
  for (const char letter : text) digest = mixed(digest, static_cast<unsigned char>(letter));
}

std::string CachedPlan::name() const {
  if (own) return own->text;
  return std::string(nameOf(choice.algorithm->collective)) + " (" +
         std::string(choice.algorithm->name) + ")";
}

std::shared_ptr<CachedPlan> ownPlan(std::shared_ptr<const PlanName> name, Plan plan,
                                    CachedPlan* before) {
  auto own = std::make_shared<CachedPlan>();
  own->digest = name->digest;
  own->own = std::move(name);
  own->plan = std::make_shared<PreparedPlan>(std::move(plan));
  if (before != nullptr)
    for (RunSlot* slot : before->idle) {
      own->slots.push_back(std::make_unique<RunSlot>(own->plan));
      own->slots.back()->run.takeArena(slot->run);
      own->idle.push_back(own->slots.back().get());
    }
  return own;
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
