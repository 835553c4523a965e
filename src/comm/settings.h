// How a communicator behaves: moecclConfig_t and the environment, checked and made one value.
//
//   MOECCL_TIMEOUT    milliseconds, over config.timeoutMs; the same meaning of 0 and of negatives
//   MOECCL_FAILURE_DETECTION  the same, over config.failureDetectionMs
//   MOECCL_ALGO       "collective=algorithm[:parameter=n,...];...", over config.algorithms, per
//                     collective
//   MOECCL_NODE_ID    over config.nodeId
//   MOECCL_TRANSPORT  auto | loopback | tcp | ucx
//   MOECCL_SOCKET_IFNAME     interfaces that TCP may use, in NCCL's syntax
//   MOECCL_SOCKETS_PER_PEER  TCP connections of each pair of ranks
//   MOECCL_UNEXPECTED_BYTES  memory for messages over TCP that nobody has asked for yet
//   MOECCL_REGISTER   0: NCCL copies what it sends and receives of the library's memory
//   MOECCL_TRACE      begin of the names of the files that traces are written to
//   MOECCL_PROFILE    path of the cluster's profile
//   MOECCL_PROBE      0: where there is no profile links are not measured
//
// A variable that is empty counts as not set.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "algorithms/registry.h"
#include "moeccl/moeccl.h"
#include "src/base/environment.h"
#include "src/exec/tcp.h"

namespace moeccl {

enum class TransportChoice { automatic, loopback, tcp, ucx };

inline constexpr std::int64_t kDefaultTimeoutMs = 300'000;
inline constexpr std::int64_t kDefaultFailureDetectionMs = 3000;
inline constexpr std::int64_t kForever = -1;

struct Settings {
  bool progressThread = false;
  std::int64_t timeoutMs = kDefaultTimeoutMs;                    // or kForever, never 0
  std::int64_t failureDetectionMs = kDefaultFailureDetectionMs;  // or kForever
  std::array<AlgorithmChoice, kCollectives> algorithms{};  // by collective; no algorithm: automatic
  std::string nodeId;                                      // empty: found out from the host
  TransportChoice transport = TransportChoice::automatic;  // on host memory
  std::string interfaces;                                  // empty: any
  int socketsPerPeer = 1;
  std::size_t unexpectedBytes = kTcpMemory;
  moecclMemory_t memory = moecclMemoryHost;
  bool registers = true;  // memory for messages with NCCL
  std::string trace;      // empty: none
  std::string profile;    // empty: none
  bool probe = false;     // links, where there is no profile
  // Called while a call waits; nullptr: nothing is.
  void (*idle)(void* context) = nullptr;
  void* idleContext = nullptr;

  const AlgorithmChoice& choiceFor(Collective collective) const {
    return algorithms[static_cast<std::size_t>(collective)];
  }
};

// `config` may be nullptr: defaults. Throws Error with moecclInvalidArgument, naming the field or
// the variable and what it may be.
Settings readSettings(const moecclConfig_t* config,
                      const Environment& environment = processEnvironment());
// The interfaces that a process may listen on, which it needs before it has a communicator.
std::string socketInterfaces(const Environment& environment = processEnvironment());
// For a split of a communicator: nodeId, progressThread, idle, memory and transport are the
// parent's; the rest too when `config` is nullptr.
Settings readSplitSettings(const Settings& parent, const moecclConfig_t* config,
                           const Environment& environment = processEnvironment());

// config.timeoutMs as a setting.
std::int64_t timeoutOf(std::int64_t milliseconds);

// "alltoall=hierarchical:leaders=1;allgather=ring" -> entries of `into`; "alltoall=auto" clears
// one. `source` names the string in errors.
void parseAlgorithms(std::string_view text, std::string_view source,
                     std::array<AlgorithmChoice, kCollectives>* into);

// Ranks must agree on some settings. Each hands the others comparable(); disagreement() then says
// which rank has what in the first setting that differs, or "" when all agree.
//   "ranks disagree on timeoutMs: rank 0 has 1000, ranks 1-7 have 300000"
std::string comparable(const Settings& settings, int ranks);
std::string disagreement(std::span<const std::string> byRank);

}  // namespace moeccl
