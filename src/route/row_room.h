// How rows share room that is too small for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moeccl {

// What each gets of `room`, of which it takes multiples of `unit`: none more than it wants, and
// those that do not get all equally much, but for a unit each that the first of them get more.
std::vector<std::int64_t> sharesOf(std::span<const std::int64_t> wants, std::int64_t room,
                                   std::int64_t unit);

}  // namespace moeccl
