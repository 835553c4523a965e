// How a thread looks again and again for what a GPU or another thread does.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace moeccl {

class Polling {
 public:
  // Before the next look. Most waits are short, and a sleep of 10 us takes 60 to 130: the first
  // 100 us are spent looking. Later sleeps double, up to 1 ms.
  void pause() {
    if (Clock::now() - begin_ < std::chrono::microseconds(100)) return;
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(1000));
  }
  // Negative: never.
  bool hasTaken(std::int64_t milliseconds) const {
    return milliseconds >= 0 && Clock::now() - begin_ > std::chrono::milliseconds(milliseconds);
  }

 private:
  using Clock = std::chrono::steady_clock;

  const Clock::time_point begin_ = Clock::now();
  std::chrono::microseconds sleep_{10};
};

}  // namespace moeccl
