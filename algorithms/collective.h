// What each collective promises, apart from how: how many blocks a rank puts in and gets out, and
// which payloads an output block must hold. The verifier proves plans against it; extents size
// blocks by it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "algorithms/plan.h"

namespace moeccl {

enum class Collective : std::uint8_t {
  allToAll,   // P input blocks, P output blocks: output[s] at d = input[d] at s
  allGather,  // 1 input block, P output blocks: output[s] = input[0] at s
};
inline constexpr int kCollectives = 2;

// As in override strings, benchmark labels and profile keys: "alltoall", "allgather".
std::string_view nameOf(Collective collective);
std::optional<Collective> collectiveNamed(std::string_view name);

// The promise, for `ranks` ranks.
struct Contract {
  Collective collective;
  int ranks;

  int inputBlocks(int rank) const;
  int outputBlocks(int rank) const;
  // The payloads that the output block must hold: one payload, or the sum of several, each once.
  std::vector<Payload> expected(int rank, int outputBlock) const;
};

}  // namespace moeccl
