// The plans that a communicator has used, each ready to run, with the runs that use it: calls on
// several streams run at once. Calls after the first of a kind allocate nothing but all-to-all-v's tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/extents.h"
#include "algorithms/registry.h"
#include "src/exec/host_run.h"

namespace moeccl {

// A run, and what its operands refer to.
struct RunSlot {
  explicit RunSlot(std::shared_ptr<const PreparedPlan> plan) : run(std::move(plan)) {}

  HostRun run;
  std::vector<Extent> scratch;
  // By rank, in bytes: of a call that tells its relays first how much they will carry.
  std::vector<std::uint64_t> sendBytes, recvBytes;
};

struct CachedPlan {
  AlgorithmChoice choice;
  std::uint64_t digest = 0;  // of the choice
  std::shared_ptr<const PreparedPlan> plan;
  std::vector<std::unique_ptr<RunSlot>> slots;
  std::vector<RunSlot*> idle;

  RunSlot& take();
  void giveBack(RunSlot& slot) { idle.push_back(&slot); }
};

// Builds a plan; throws Error with moecclInvalidUsage where the algorithm is not offered.
std::shared_ptr<const PreparedPlan> preparePlan(const AlgorithmChoice& choice,
                                                const Topology& topology, int rank);

class PlanCache {
 public:
  // Prepares the plan at its first use. The reference stays valid.
  CachedPlan& get(const AlgorithmChoice& choice, const Topology& topology, int rank);
  std::span<const std::unique_ptr<CachedPlan>> all() const { return plans_; }

 private:
  std::vector<std::unique_ptr<CachedPlan>> plans_;
};

}  // namespace moeccl
