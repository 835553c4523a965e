// A transport that can sleep together with others, in one call to the kernel.
#pragma once

#include <span>

#include "src/exec/transport.h"

namespace moeccl {

class PollableTransport : public Transport {
 public:
  // Before a sleep. False: there is something to do at once. Else a sleeper polls sleepOn() for reading,
  // for `milliseconds` at most, which this may shorten, and calls awake() afterwards.
  virtual bool prepareToSleep(int* milliseconds) = 0;
  virtual std::span<const int> sleepOn() const = 0;
  virtual void awake() = 0;
  // Whether transfers are in flight.
  virtual bool isBusy() const = 0;
};

}  // namespace moeccl
