// Signals are the application's: its handlers never run on a thread of ours.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace moeccl {

// Blocks all signals on the thread that made it, while it lives. Threads that are started meanwhile
// inherit that for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace moeccl
