// Handlers of signals, which Python runs between two of its instructions, run in calls of the
// library that wait, too.
#pragma once

#include <moeccl/moeccl.h>

#include <exception>

#include "waits.h"

namespace moeccl::torch {

// Python's handlers run in its main thread alone, and nowhere else does this do anything. Throws
// what a handler raises.
void runSignalHandlers();

// While there is one, what this thread calls runs handlers while it waits. One that raises revokes
// the communicator, so that the call ends on all ranks; the caller then calls rethrow(). So does
// what `wait` finds out, where it is not null.
class Interruptible {
 public:
  explicit Interruptible(moecclComm_t comm, Wait* wait = nullptr);
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible();

  // Throws what a handler has raised.
  void rethrow() const {
    if (raised_) std::rethrow_exception(raised_);
  }
  // moecclConfig_t's.
  static void idle(void* context);

 private:
  const moecclComm_t comm_;
  Wait* const wait_;
  Interruptible* const before_;
  std::exception_ptr raised_;
};

// What `call` returns, a call of `comm` that may wait. Throws what a handler has raised.
template <typename Call>
moecclResult_t interruptible(moecclComm_t comm, const Call& call, Wait* wait = nullptr) {
  const Interruptible scope(comm, wait);
  const moecclResult_t result = call();
  scope.rethrow();
  return result;
}

}  // namespace moeccl::torch
