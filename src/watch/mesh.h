// The control connections of a job: which ranks have one, and how they come about at the start.
//
// Rank i has one with the ranks i +- 2^j, and with at least one rank of another node where there is
// any: so each rank is watched from outside of its node, few connections are needed, and those that
// live stay connected among themselves whichever nodes are lost. Ranks of a node use Unix sockets,
// whose files are gone when this is done, or after a kill at the next start (without a /dev/shm
// that can be written to they have none). Others use TCP, on ports that stay open, since such
// connections may have to be made again (mesh_watch.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/topology.h"
#include "src/bootstrap/acceptor.h"
#include "src/bootstrap/oob.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/bootstrap/socket.h"
#include "src/watch/control_dial.h"
#include "src/watch/process_watch.h"

namespace moeccl {

// The peers of a rank, in ascending order. Symmetric.
std::vector<int> controlPeers(const Topology& topology, int rank);

struct MeshOptions {
  Secret secret{};
  std::vector<std::string> hosts;       // by rank, for people
  std::int64_t failureDetectionMs = 0;  // negative: a host that no longer answers goes unnoticed
  std::int64_t timeoutMs = -1;          // for all to connect; negative: for ever
  std::string interfaces;               // that may be listened on (interfaces.h)

  // For so long a peer's host may be silent before its connection is given up, and another one is
  // tried until failureDetectionMs are over.
  std::int64_t doubtMs() const {
    return failureDetectionMs < 0 ? -1
                                  : std::max(failureDetectionMs / 2, failureDetectionMs - 1000);
  }
};

struct ControlLink {
  int peer = -1;
  Socket socket;
};

struct Mesh {
  std::vector<ControlLink> links;          // to the peers, each of which has proved itself
  std::vector<ProcessIdentity> processes;  // by rank
  std::vector<ControlAddress> addresses;   // by rank, of the peers
  std::optional<Acceptor> acceptor;        // none: all peers are of this node
};

// Collective. `take` is called with the connections of this rank; what it throws fails all ranks.
// Throws Error: names the ranks that cannot be reached.
void connectMesh(Oob& oob, const Topology& topology, const MeshOptions& options,
                 const std::function<void(Mesh)>& take);

}  // namespace moeccl
