// Whether calls take the time that the communicator's profile says. A profile of another network
// misleads for ever, and silently.
#pragma once

#include <string>

#include "src/base/log.h"

namespace moeccl {

class ProfileCheck {
 public:
  // So many calls are looked at together, and so many of them must be off by the factor.
  static constexpr int kCalls = 100, kOff = 90;
  static constexpr double kFactor = 3;

  // Adds a call that the caller has waited for. Returns the warning for the call that shows that
  // the profile is off, once, and "" for all others.
  std::string add(double predicted, double seconds);

 private:
  struct Calls {
    double predicted = 0, seconds = 0;  // of all together
    int count = 0;

    void add(double predictedOfOne, double secondsOfOne) {
      predicted += predictedOfOne;
      seconds += secondsOfOne;
      ++count;
    }
  };

  Calls slow_, fast_;  // that are off by the factor
  int calls_ = 0;
  bool warned_ = false;
};

// Adds calls to a check while warnings are asked for (MOECCL_DEBUG).
inline bool checksProfiles() { return logs(LogLevel::warn); }

}  // namespace moeccl
