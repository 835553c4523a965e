// The data that a check moves: every element of every block is distinguishable from its neighbours,
// from other blocks and from another iteration's, in any data type, since it is only ever moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "perf/collectives.h"

namespace moeccl::perf {

void fillBlock(std::span<std::byte> block, Payload payload, std::uint64_t iteration);
// What no block holds at the same place, so that a block which never arrived is wrong all over.
void poisonBlock(std::span<std::byte> block, Payload payload, std::uint64_t iteration);
// How many elements of `elementBytes` bytes differ from what fillBlock would have written.
std::int64_t countWrong(std::span<const std::byte> block, std::size_t elementBytes, Payload payload,
                        std::uint64_t iteration);

}  // namespace moeccl::perf
