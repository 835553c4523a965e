// What every op of every run does, and when: a file for Perfetto (ui.perfetto.dev) or
// chrome://tracing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/plan.h"

namespace moeccl {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  // Written by write(), to `path`. `rank` names the process in the picture.
  Trace(std::string path, int rank);

  // A name for the ops of a run, to be kept.
  std::uint32_t label(const std::string& name);

  // An op is complete. `plan` is not kept.
  void add(std::uint32_t label, std::uint32_t comm, std::uint32_t call, const Plan& plan, int op,
           std::size_t bytes, Clock::time_point begin, Clock::time_point end);

  // What has been added so far; returns false, with errno, where it cannot be written.
  bool write() const;
  const std::string& path() const { return path_; }

 private:
  struct Event {
    Clock::time_point begin, end;
    std::size_t bytes;
    std::uint32_t label, comm, call;
    std::int32_t peer, op, step;
    std::int16_t lane;
    OpKind kind;
  };

  const std::string path_;
  const int rank_;
  std::vector<std::string> labels_;
  std::vector<Event> events_;
  std::uint64_t left_ = 0;  // events for which there was no room
};

}  // namespace moeccl
