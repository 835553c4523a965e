// The plans that a communicator has used, each ready to run, with the runs that use it: calls on
// several streams run at once. Calls after the first of a kind allocate nothing but all-to-all-v's
// tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "algorithms/extents.h"
#include "algorithms/registry.h"
#include "src/exec/host_run.h"

namespace moeccl {

class RowRun;

// A run, and what its operands refer to.
struct RunSlot {
  explicit RunSlot(std::shared_ptr<const PreparedPlan> plan) : run(std::move(plan)) {}

  HostRun run;
  std::vector<Extent> scratch;
  // By rank, in bytes: of a call that tells its relays first how much they will carry.
  std::vector<std::uint64_t> sendBytes, recvBytes;
};

// A plan that comes with its calls, and from no registry. Ranks that make the same call have equal
// names.
struct PlanName {
  explicit PlanName(std::string name);

  std::string text;  // "token dispatch (node)"
  std::uint64_t digest;
};

struct CachedPlan {
  AlgorithmChoice choice;
  std::shared_ptr<const PlanName> own;  // instead of the choice
  std::uint64_t digest = 0;             // of the choice, or of the name
  std::shared_ptr<const PreparedPlan> plan;
  std::vector<std::unique_ptr<RunSlot>> slots;
  std::vector<RunSlot*> idle;
  std::shared_ptr<RowRun> rows;  // of an own plan, on GPUs

  RunSlot& take();
  void giveBack(RunSlot& slot) { idle.push_back(&slot); }
  bool allIdle() const { return idle.size() == slots.size(); }
  // "alltoall (linear)"
  std::string name() const;
};

// Makes a plan ready for Call::own. `before`: the plan whose memory it takes, or nullptr.
std::shared_ptr<CachedPlan> ownPlan(std::shared_ptr<const PlanName> name, Plan plan,
                                    CachedPlan* before);

// Builds a plan; throws Error with moecclInvalidUsage where the algorithm is not offered.
std::shared_ptr<const PreparedPlan> preparePlan(const AlgorithmChoice& choice,
                                                const Topology& topology, int rank);

class PlanCache {
 public:
  // Prepares the plan at its first use. The reference stays valid.
  CachedPlan& get(const AlgorithmChoice& choice, const Topology& topology, int rank);
  // A plan that comes with a call is here while the call is under way.
  void add(const std::shared_ptr<CachedPlan>& own);
  void drop(const CachedPlan& own);
  std::span<const std::shared_ptr<CachedPlan>> all() const { return plans_; }

 private:
  std::vector<std::shared_ptr<CachedPlan>> plans_;
};

}  // namespace moeccl
