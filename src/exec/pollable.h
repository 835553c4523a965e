// A transport that can sleep together with others, in one call to the kernel.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>

#include "src/exec/transport.h"

namespace moeccl {

class PollableTransport : public Transport {
 public:
  // Before a sleep. False: there is something to do at once. Else a sleeper polls sleepOn() for
  // reading, for `milliseconds` at most, which this may shorten, and calls awake() afterwards, with
  // what was polled in that order. A negative descriptor stands for none, as with poll().
  virtual bool prepareToSleep(int* milliseconds) = 0;
  virtual std::span<const int> sleepOn() const = 0;
  virtual void awake(std::span<const pollfd> polled) = 0;
  // Whether transfers are in flight.
  virtual bool isBusy() const = 0;
  // Whether all sends are over: a part of a close() in order, to be asked between calls of
  // progress(). What comes from then on belongs to calls that failed: nobody will ask for it, and
  // its sender, who may be closing too, need not wait.
  virtual bool drained() = 0;
  // When lastError() was last set.
  virtual std::chrono::steady_clock::time_point lastErrorTime() const = 0;
};

}  // namespace moeccl
