// Deadlines and times of the set-up.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>

namespace moeccl {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline constexpr TimePoint kNever = TimePoint::max();

// Negative: kNever.
inline TimePoint afterMs(std::int64_t milliseconds) {
  constexpr std::int64_t kCentury = std::int64_t{100} * 366 * 24 * 3600 * 1000;
  if (milliseconds < 0 || milliseconds > kCentury) return kNever;
  return Clock::now() + std::chrono::milliseconds(milliseconds);
}

inline double secondsSince(TimePoint begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

inline bool isPast(TimePoint deadline) { return deadline != kNever && Clock::now() >= deadline; }

// Rounded up, 0 when past, -1 for kNever: the argument of poll and epoll_wait.
inline int msUntil(TimePoint deadline) {
  if (deadline == kNever) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
}

}  // namespace moeccl
