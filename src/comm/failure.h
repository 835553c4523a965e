// How a communicator has failed, on hosts or GPUs, and which of its ranks are lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moeccl/moeccl.h"
#include "src/watch/watch.h"

namespace moeccl {

// How long a rank whose connection broke, or that NCCL reports an error to, waits to hear which
// rank is dead or has given up. Usually at once: this is for busy machines.
inline constexpr std::chrono::milliseconds kCauseGrace{1000};

// Who has revoked a communicator, and why.
struct Revocation {
  int rank;  // of that communicator
  std::string text;
  const char* what = "the communicator";

  // The same for a communicator that depends on that one.
  Revocation ofWhole() const { return {rank, text, "the grid's communicator"}; }
  std::string message() const {
    return "rank " + std::to_string(rank) + " revoked " + what + (text.empty() ? "" : ": " + text);
  }
};

struct Failure {
  moecclResult_t result = moecclSuccess;  // the first error
  std::string text;                       // its text
  std::optional<Revocation> revocation;
  // Ranks that are dead or have left, in the order in which this became known.
  std::vector<int> lost;

  bool any() const { return result != moecclSuccess; }
  void throwIfAny() const;
  // Takes note of an error; returns whether it is the first.
  bool note(moecclResult_t error, std::string_view errorText);
};

// The rank of a communicator that is rank `ofJob` of the job, of which it has `members`.
std::optional<int> rankAmong(std::span<const int> members, int ofJob);

Notice noticeOf(std::uint32_t communicator, moecclResult_t result, std::string_view text);

// "rank 1 on node-a is dead: its process 71 has ended".
std::string deathText(int rank, const Watch& watch, const Loss& loss);
// What ranks are told whose calls differ.
std::string differentCalls(int rank, std::string_view call, int other, std::string_view othersCall,
                           std::string_view more = "");

}  // namespace moeccl
