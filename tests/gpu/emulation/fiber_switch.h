// Tells sanitizers which stack is in use.
#pragma once

#include <cstddef>

#include "tests/gpu/emulation/sanitizer.h"

#ifdef MOECCL_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace moeccl::emulation {

// What sanitizers are told of one fibre, and of whoever enters it. Each call is next to a switch.
class FiberSwitch {
 public:
#ifdef MOECCL_ADDRESS_SANITIZER
  // On the outside.
  void enter(const void* stack, std::size_t bytes) {
    __sanitizer_start_switch_fiber(&outerFrames_, stack, bytes);
  }
  void entered() { __sanitizer_finish_switch_fiber(outerFrames_, nullptr, nullptr); }
  // On the fibre.
  void begin() { __sanitizer_finish_switch_fiber(frames_, &outerStack_, &outerBytes_); }
  void leave() { __sanitizer_start_switch_fiber(&frames_, outerStack_, outerBytes_); }

 private:
  void *frames_ = nullptr, *outerFrames_ = nullptr;
  const void* outerStack_ = nullptr;
  std::size_t outerBytes_ = 0;
#else
  void enter(const void*, std::size_t) {}
  void entered() {}
  void begin() {}
  void leave() {}
#endif
};

}  // namespace moeccl::emulation
