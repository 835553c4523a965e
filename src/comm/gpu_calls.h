// Whether the ranks of a communicator on GPUs make the same calls in the same order. Nothing tells
// one call of NCCL's from another, and where they differ they may stand for ever. So calls are
// numbered, and a rank whose last one stands still asks the others: each number stands for all
// calls up to it, of which all ranks have the same digest.
//
// What graphs run is not known here. So a rank neither asks nor answers about calls from the first
// on that it has captured.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/call.h"

namespace moeccl {

class GpuCalls {
 public:
  using Clock = std::chrono::steady_clock;

  // The next call, which is not captured.
  void add(CallSignature signature, Clock::time_point now);
  // All that follow are not compared.
  void stop() { stopped_ = true; }

  // The call that other ranks are asked about.
  struct Question {
    std::uint32_t call;  // its number
    std::uint64_t digest;
    std::string text;
  };
  std::uint32_t made() const { return next_; }
  // Whether the last call stands still if it is not complete by now.
  bool isDue(Clock::time_point now) const { return now >= ask_; }
  // Asks about the last call, which stands still. The next question comes after twice as long.
  Question ask(Clock::time_point now);
  // All of so many calls are complete.
  void rest(std::uint32_t made) {
    if (made == next_) ask_ = Clock::time_point::max();
  }

  // What this rank has called where another has asked; nothing where both have made the same calls,
  // or that is not known.
  std::optional<std::string> otherThan(std::uint32_t call, std::uint64_t digest) const;

 private:
  static constexpr std::uint32_t kKept = 1024;
  struct Record {
    CallSignature signature;
    std::uint64_t digest = 0;  // of it and all before
  };

  std::vector<Record> records_ = std::vector<Record>(kKept);  // by number modulo its size
  std::uint32_t next_ = 0;
  std::uint64_t digest_ = 0;
  bool stopped_ = false;
  Clock::time_point ask_ = Clock::time_point::max();
  Clock::duration pause_{};
};

}  // namespace moeccl
