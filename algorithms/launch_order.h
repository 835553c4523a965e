// The order in which a stream machine launches a plan: one stream per lane, one launch per step.
//
// A machine with several streams may have no room to run what they hold at once: kernels that wait
// for other ranks keep their place while they wait, and streams can share a queue of the hardware.
// What it launches first, however, it can always start first. So plans must be free of deadlock
// even when every step waits for all that was launched before it, on any lane (the verifier proves
// it), and whatever such a machine manages to do at the same time is a gain.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/plan.h"

namespace moeccl {

struct Launch {
  std::int16_t lane;
  std::int32_t step;
  PoolRange ops;  // of LaunchOrder::ops
  // By lane: the last launch there that this one depends on, an index; -1: none.
  std::array<std::int32_t, kMaxLanes> after;
};

struct LaunchOrder {
  std::vector<Launch> launches;
  std::vector<std::int32_t> ops;  // of the plan, launch by launch; within one in the plan's order

  std::span<const std::int32_t> opsOf(const Launch& launch) const {
    return {ops.data() + launch.ops.begin, static_cast<std::size_t>(launch.ops.count)};
  }
};

// Lanes in the order of their steps, dependencies first; of the steps that could be next, the one
// whose first op comes first in the plan. The plan names ops, lanes and dependencies that exist.
// Steps of several lanes that wait for each other in a circle are left out, and what comes after
// them: then `ops` is shorter than the plan.
LaunchOrder launchOrder(const Plan& plan);

}  // namespace moeccl
