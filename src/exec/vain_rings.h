// Keeps strangers from keeping a rank awake. There are bells that anybody can ring: a port, sockets
// of UCX's (ucx_sockets.h). Whoever rings often for nothing, one time after another, is no rank.
// For some time nobody listens to the bell then, and a sleeper looks by itself now and then.
#pragma once

#include <chrono>

namespace moeccl {

class VainRings {
 public:
  // How often a sleeper looks that does not listen.
  static constexpr int kLookMs = 20;

  // A rank was awake: because it was rung for, or not; and there was something to do, or not.
  void awoke(bool rung, bool moved) {
    if (moved)
      vain_ = 0;
    else if (rung)
      ++vain_;
    if (vain_ <= kMost) return;
    vain_ = 0;
    deafUntil_ = Clock::now() + kDeaf;
  }
  // Whether the bell is not to be listened to.
  bool deaf() {
    if (deafUntil_ == Clock::time_point{}) return false;
    if (Clock::now() < deafUntil_) return true;
    deafUntil_ = {};
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr int kMost = 40;
  static constexpr std::chrono::seconds kDeaf{1};

  int vain_ = 0;
  Clock::time_point deafUntil_{};
};

}  // namespace moeccl
