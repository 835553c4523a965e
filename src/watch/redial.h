// How a rank makes a control connection again that has broken while its peer lives. Either end
// dials, for neither knows whether the other has noticed. Each try has an index above all that the
// pair has used, odd where the higher rank dials and even where the lower one does. So if two meet,
// both ends keep the same, and one that comes late is known to be old.
//
// A peer whose port is closed has ended. One whose host is silent is given until failureDetectionMs
// are over, and the interval of TCP's probes: the outage may have begun that long after the last
// answer. One that has accepted the connection and says nothing may be stopped, and is waited for.
#pragma once

#include <cstdint>
#include <optional>

#include "src/bootstrap/clock.h"
#include "src/watch/control_dial.h"

namespace moeccl {

class Redial {
 public:
  struct Limits {
    std::int64_t detectionMs;  // negative: never
    std::int64_t doubtMs;      // MeshOptions::doubtMs()
  };
  // Milliseconds between two steps.
  static constexpr int kStepMs = 20;

  Redial(const Secret& secret, int rank, int peer, const ControlAddress& to, const Limits& limits)
      : secret_(secret), rank_(rank), higher_(rank > peer), to_(to), limits_(limits) {}

  // Whether the peer has a port.
  bool isPossible() const { return to_.endpoint.port != 0; }
  // The connection has broken, after so long a silence.
  void begin(std::int64_t silentMs);
  bool isRunning() const { return running_; }
  void stop();

  enum class Result {
    running,
    made,    // take()
    ended,   // nobody listens there any more
    silent,  // the host does not answer
  };
  Result step();
  Socket take();

  // Whether a connection that the peer has made takes the place of all others.
  bool yieldsTo(std::uint32_t index);

 private:
  Result giveUp(bool silent);
  void extend(std::int64_t silentMs);

  const Secret secret_;
  const int rank_;
  const bool higher_;
  const ControlAddress to_;
  const Limits limits_;
  std::uint32_t index_ = 0;  // the highest that either has used, as far as this rank knows
  bool running_ = false;
  std::optional<ControlDial> dial_;  // none: another is due at next_
  TimePoint next_ = kNever, until_ = kNever;
};

}  // namespace moeccl
