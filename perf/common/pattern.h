// The data that a check moves: every element of every block is distinguishable from its neighbours,
// from other blocks and from another iteration's, in any data type. Where it is summed, every
// element is one rank's term and zero in all others', so that sums are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "perf/common/collectives.h"

namespace moeccl::perf {

// How elements look.
struct Elements {
  std::size_t bytes;  // of one
  bool sums = false;  // they will be added: positive finite numbers in every type
};

void fillBlock(std::span<std::byte> block, Elements elements, BlockData payload,
               std::uint64_t iteration);
// Fills a block with bytes that differ from the right ones everywhere, so that a block which never
// arrived is wrong all over.
void poisonBlock(std::span<std::byte> block, Elements elements, BlockData payload,
                 std::uint64_t iteration);
// How many elements differ from what fillBlock would have written.
std::int64_t countWrong(std::span<const std::byte> block, Elements elements, BlockData payload,
                        std::uint64_t iteration);

}  // namespace moeccl::perf
