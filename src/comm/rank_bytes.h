// What ranks tell each other in bytes of host memory.
#pragma once

#include <cstddef>
#include <vector>

namespace moeccl {

struct RankBytes {
  int rank;
  std::vector<std::byte> bytes;
};

}  // namespace moeccl
