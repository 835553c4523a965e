// Where a rank runs: which ranks share a node, and which share a process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "algorithms/topology.h"

namespace moeccl {

// Plain bytes, for an Oob's all-gather.
struct HostIdentity {
  std::uint64_t node = 0;     // equal: the same node
  std::uint64_t process = 0;  // equal: the same process, whatever its nodes are called
  std::uint64_t memory = 0;   // equal: messages can go by shared memory, whatever nodes are called
  std::uint64_t network = 0;  // equal: one loopback interface
  char name[64] = {};         // for people: the host's name, or the node id; cut when longer

  bool operator==(const HostIdentity&) const = default;
};
static_assert(std::is_trivially_copyable_v<HostIdentity>);

// The identity of the calling process. Ranks that can share memory are on one node. If `nodeId` is
// not empty, it decides instead: equal strings are one node.
HostIdentity hostIdentity(std::string_view nodeId = {});

// Nodes are numbered in the order in which the ranks first mention them.
Topology buildTopology(std::span<const HostIdentity> byRank);
// Whether all ranks are threads of one process.
bool shareProcess(std::span<const HostIdentity> byRank);

}  // namespace moeccl
