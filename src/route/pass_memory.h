// Memory of passes, by the number of their buffers. It only grows, so that passes of other sizes
// find it again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "src/route/mover.h"

namespace moeccl::schedules {

struct PassMemory {
  std::vector<Memory> memory;
  std::vector<std::size_t> room;

  void resize(std::size_t buffers) {
    memory.resize(std::max(memory.size(), buffers));
    room.resize(memory.size());
  }
};

}  // namespace moeccl::schedules
