// Counts rows that leave their node, exchange by exchange.
#include "traffic.h"

#include <functional>
#include <numeric>

namespace quickstart {
namespace {

using InOneGroup = std::function<bool(int, int)>;

// In an all-to-all and in a linear all-gather alike, each rank sends one block to every other rank
// of its group.
void addExchange(const Topology& topology, const InOneGroup& inOneGroup, std::int64_t block,
                 std::vector<std::int64_t>& leaving) {
  for (int from = 0; from < topology.ranks(); ++from)
    for (int to = 0; to < topology.ranks(); ++to)
      if (inOneGroup(from, to) && topology.nodeOfRank[from] != topology.nodeOfRank[to])
        leaving[topology.nodeOfRank[from]] += block;
}

bool espInOneNode(const Topology& topology, const moecclGridShape_t& grid, int rank) {
  const int first = rank / grid.nEsp * grid.nEsp;
  for (int other = first; other < first + grid.nEsp; ++other)
    if (topology.nodeOfRank[other] != topology.nodeOfRank[first]) return false;
  return true;
}

}  // namespace

std::vector<std::int64_t> payloadLeaving(const Topology& topology, const moecclGridShape_t& grid,
                                         const moecclMoeConfig_t& config, std::int64_t capacity,
                                         moecclSchedule_t schedule, const std::string& algorithm) {
  const InOneGroup mp = [&](int a, int b) { return a / grid.nMp == b / grid.nMp; };
  const InOneGroup esp = [&](int a, int b) { return a / grid.nEsp == b / grid.nEsp; };
  const InOneGroup ep = [&](int a, int b) { return a % grid.nEsp == b % grid.nEsp; };

  const std::int64_t row = config.embedding * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t localExperts = config.experts / grid.nEp;
  std::vector<std::int64_t> leaving(static_cast<std::size_t>(topology.nodes), 0);
  const auto add = [&](const InOneGroup& group, std::int64_t block) {
    addExchange(topology, group, block, leaving);
  };
  if (schedule == moecclScheduleBaseline) {
    add(esp, config.tokens * row);                       // ESP-AllGather
    add(ep, localExperts * grid.nEsp * capacity * row);  // EP-AlltoAll
    add(esp, 2 * config.experts * capacity * row);       // ESP-AllReduce: reduce, then gather
    add(ep, localExperts * capacity * row);              // EP-AlltoAll, after the ESP-Split
  } else {
    const std::int64_t groups = config.capacityGroups == 0 ? grid.nMp : config.capacityGroups;
    const std::int64_t unit = std::lcm(groups, static_cast<std::int64_t>(grid.nMp));
    const std::int64_t part = (config.tokens + unit - 1) / unit * unit / grid.nMp;
    const std::int64_t block = localExperts * (capacity / grid.nMp) * row;
    // Dispatch and combine, each from ranks to shards or back: without duplicates the shards of an
    // expert that share a node pass on to each other what crosses but once.
    for (int rank = 0; rank < topology.ranks(); ++rank)
      for (int shard = 0; shard < topology.ranks(); ++shard) {
        const int here = topology.nodeOfRank[rank], there = topology.nodeOfRank[shard];
        if (here == there) continue;
        const int shards =
            algorithm == "dedup" && espInOneNode(topology, grid, shard) ? grid.nEsp : 1;
        leaving[here] += block / shards;
        leaving[there] += block / shards;
      }
    add(mp, part * row);                                                      // MP-AllGather
    add(mp, 4 * config.experts * static_cast<std::int64_t>(sizeof(double)));  // the gate's sums
  }
  return leaving;
}

}  // namespace quickstart
