// How the ranks stay together while they measure: what depends on a clock, or on a signal, is
// decided from what all of them know.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <vector>

#include "perf/common/job.h"

namespace moeccl::perf {

// Thrown on all ranks at once after SIGINT or SIGTERM has come to one of them.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

class Team {
 public:
  // From now on the first SIGINT or SIGTERM is told to all ranks instead of ending this one.
  explicit Team(const Job& job);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const Job& job() const { return job_; }
  // The largest of all ranks' values at each place, the same on all ranks. Collective, as are the
  // others; all throw Interrupted.
  std::vector<double> slowest(const std::vector<double>& mine);
  void barrier();

  // Whether this rank sleeps while it waits in those, since others are measured that share its
  // node. On a GPU ranks wait as ever: what others share are links.
  void setAsleep(bool asleep) { asleep_ = asleep; }

  // Seconds from the beginning to the last slowest(), on rank 0's clock.
  double elapsed() const { return elapsed_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct DestroyStream {
    void operator()(moecclStream_t stream) const { moecclStreamDestroy(stream); }
  };

  std::vector<double> gather(const std::vector<double>& mine);

  const Job& job_;
  std::unique_ptr<void, DestroyStream> stream_;  // on host memory
  Clock::time_point begin_ = Clock::now();
  double elapsed_ = 0;
  bool asleep_ = false;
};

}  // namespace moeccl::perf
