// Ranks as processes over TCP sockets.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "src/bootstrap/rendezvous_id.h"
#include "src/exec/pollable.h"

namespace moeccl {

inline constexpr std::size_t kTcpMemory = std::size_t{64} << 20;
inline constexpr int kMostTcpConnections = 16;

struct TcpOptions {
  Secret secret{};                  // the job's; whoever has it is let in
  std::string interfaces;           // MOECCL_SOCKET_IFNAME
  bool oneHost = false;             // all ranks share a network: listen on the loopback
  std::size_t memory = kTcpMemory;  // for messages that nobody has asked for, at most
  // How long a host that cannot be reached is dialed again: whether it is dead is for others to say
  // first.
  std::int64_t dialMs = 0;
  int connections = 1;  // of each pair; of two ranks that differ the smaller counts
};

// Both throw std::runtime_error.
std::unique_ptr<PollableTransport> makeTcpTransport(int rank, int ranks, const TcpOptions& options);

// With UCX's shared memory between `members`, in ascending order, of whom this rank is one.
std::unique_ptr<Transport> makeJointTransport(int rank, int ranks, const std::vector<int>& members,
                                              const TcpOptions& options);

}  // namespace moeccl
