// Yields the core, and stops that for a number of sleeps where turns are long and others run.
#include "src/comm/waiting.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "src/base/file_descriptor.h"

namespace moeccl {

// Without an allocation: it is asked in the middle of calls.
int runningOnHost() {
  const FileDescriptor file(open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  char text[128] = {};
  if (!file || read(file.get(), text, sizeof text - 1) <= 0) return 0;
  // "0.20 0.18 0.12 1/80 11206": of 80, one runs.
  int running = 0;
  return std::sscanf(text, "%*f %*f %*f %d", &running) == 1 ? running : 0;
}

void Waiting::yield(int look) {
  if (!yields()) return;
  const Clock::time_point now = Clock::now();
  if (look > 0) took(now - last_);
  last_ = now;
  sched_yield();
}

void Waiting::took(Clock::duration turn) {
  if (turn < kLongTurn) {
    longTurns_ = 0;
    next_ = kShortest;
    return;
  }
  if (++longTurns_ < kLongTurns) return;
  longTurns_ = 0;
  if (running_() <= ranks_) return;
  avoided_ = next_;
  next_ = std::min(2 * next_, kLongest);
}

}  // namespace moeccl
