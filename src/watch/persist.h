// Tries a step again while memory is short: the watch's thread must not end the process for that.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace moeccl {

template <typename Step>
void persist(const Step& step) {
  for (;;) {
    try {
      return step();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace moeccl
