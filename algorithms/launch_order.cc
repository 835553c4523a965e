// Sorts a plan's ops into steps by lane, then launches ready steps one by one: among several, the
// one whose first op the plan lists first.
#include "algorithms/launch_order.h"

#include <algorithm>
#include <numeric>

namespace moeccl {
namespace {

// A step that has no place in the order yet. `needs` says by lane how many of that lane's steps
// must come first.
struct LaunchStep {
  std::int16_t lane;
  std::int32_t step;
  PoolRange ops;
  std::array<std::int32_t, kMaxLanes> needs{};
};

class Orderer {
 public:
  explicit Orderer(const Plan& plan) : plan_(plan), sorted_(plan.ops.size()) {
    std::iota(sorted_.begin(), sorted_.end(), 0);
    std::ranges::stable_sort(sorted_, {}, [&](std::int32_t op) {
      return std::pair(plan.ops[op].lane, plan.ops[op].step);
    });
    collectSteps();
    for (int lane = 0; lane < kMaxLanes; ++lane)
      for (LaunchStep& step : lanes_[lane])
        for (std::int32_t op : opsOf(step)) addNeeds(step, plan.ops[op]);
  }

  LaunchOrder run() {
    LaunchOrder order;
    order.ops.reserve(sorted_.size());
    std::array<std::vector<std::int32_t>, kMaxLanes> launched;  // indices, by lane
    while (const LaunchStep* next = choose(launched)) {
      Launch launch{next->lane, next->step, {static_cast<std::int32_t>(order.ops.size()), 0}, {}};
      for (int lane = 0; lane < kMaxLanes; ++lane)
        launch.after[lane] = next->needs[lane] == 0 ? -1 : launched[lane][next->needs[lane] - 1];
      const std::span<const std::int32_t> ops = opsOf(*next);
      launch.ops.count = static_cast<std::int32_t>(ops.size());
      order.ops.insert(order.ops.end(), ops.begin(), ops.end());
      launched[next->lane].push_back(static_cast<std::int32_t>(order.launches.size()));
      order.launches.push_back(launch);
    }
    return order;
  }

 private:
  void collectSteps() {
    place_.resize(sorted_.size());
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(sorted_.size()); ++i) {
      const Op& op = plan_.ops[sorted_[i]];
      std::vector<LaunchStep>& lane = lanes_[op.lane];
      if (lane.empty() || lane.back().step != op.step) lane.push_back({op.lane, op.step, {i, 0}});
      ++lane.back().ops.count;
      place_[sorted_[i]] = static_cast<std::int32_t>(lane.size());
    }
  }

  void addNeeds(LaunchStep& step, const Op& op) const {
    for (OpRange range : plan_.deps(op))
      for (std::int32_t d = range.first; d < range.first + range.count; ++d)
        if (const int lane = plan_.ops[d].lane; lane != step.lane)
          step.needs[lane] = std::max(step.needs[lane], place_[d]);
  }

  std::span<const std::int32_t> opsOf(const LaunchStep& step) const {
    return {sorted_.data() + step.ops.begin, static_cast<std::size_t>(step.ops.count)};
  }

  const LaunchStep* choose(const std::array<std::vector<std::int32_t>, kMaxLanes>& launched) const {
    const LaunchStep* best = nullptr;
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      if (launched[lane].size() == lanes_[lane].size()) continue;
      const LaunchStep& step = lanes_[lane][launched[lane].size()];
      bool ready = true;
      for (int other = 0; other < kMaxLanes; ++other)
        ready &= step.needs[other] <= static_cast<std::int32_t>(launched[other].size());
      if (ready && (best == nullptr || sorted_[step.ops.begin] < sorted_[best->ops.begin]))
        best = &step;
    }
    return best;
  }

  const Plan& plan_;
  std::vector<std::int32_t> sorted_;  // ops by lane and step
  std::vector<std::int32_t> place_;   // by op: how many steps of its lane there are up to its own
  std::array<std::vector<LaunchStep>, kMaxLanes> lanes_;
};

}  // namespace

LaunchOrder launchOrder(const Plan& plan) { return Orderer(plan).run(); }

}  // namespace moeccl
