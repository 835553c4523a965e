// What every op of every run does, and when: a file for Perfetto (ui.perfetto.dev) or
// chrome://tracing. Calls have a track, and lanes of plans one each; arrows go from sends to
// receives where the files of all ranks are joined.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/plan.h"
#include "src/exec/tag.h"

namespace moeccl {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  // Written by write(), to `path`. `rank` names the process in the picture.
  Trace(std::string path, int rank);

  // A name for the ops of a run, to be kept.
  std::uint32_t label(const std::string& name);

  // An op is complete. `tag`: the run's. For messages `peer` is the other process, and `message`
  // the number among those of the lane between the two. No reference to the arguments is kept.
  struct Done {
    int op, peer, message;
    std::size_t bytes;
    Clock::time_point begin, end;
  };
  void add(std::uint32_t label, const TagFields& tag, const Plan& plan, const Done& done);

  // Writes what has been added so far; returns false, with errno, where that cannot be written.
  bool write() const;
  const std::string& path() const { return path_; }

 private:
  struct Event {
    Done done;
    std::uint32_t label, comm, call, part;
    std::int32_t step;
    std::int16_t lane;
    OpKind kind;
  };
  class File;
  void writeCalls(File& file) const;
  void writeOps(File& file) const;
  // In the order of their beginnings.
  std::vector<std::size_t> inOrder() const;

  const std::string path_;
  const int rank_;
  std::vector<std::string> labels_;
  std::vector<Event> events_;
  std::uint64_t left_ = 0;  // events for which there was no room
};

}  // namespace moeccl
