// What a forward pass must send between nodes, by arithmetic: to hold the counters against.
#pragma once

#include <moeccl/moe.h>

#include <cstdint>
#include <string>
#include <vector>

namespace quickstart {

struct Topology {
  std::vector<int> nodeOfRank;
  int nodes = 1;

  int ranks() const { return static_cast<int>(nodeOfRank.size()); }
};

// Payload bytes that leave each node in one forward pass. `algorithm`: of dispatch and combine
// under S1, "flat" or "dedup"; all-to-all algorithms all send the same. `capacity` is
// moecclMoeShapes_t's. All-gathers and all-reduces are counted as the algorithm "linear" sends
// them, and grids as ordered by moecclOrderEspEp.
std::vector<std::int64_t> payloadLeaving(const Topology& topology, const moecclGridShape_t& grid,
                                         const moecclMoeConfig_t& config, std::int64_t capacity,
                                         moecclSchedule_t schedule, const std::string& algorithm);

}  // namespace quickstart
