// A hash of numbers in their order, equal on all ranks that add the same ones.
#pragma once

#include <cstdint>

namespace moeccl {

// `state` with `value` added to it. Each bit of either changes half of the result's.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u;
  return state ^ state >> 32;
}

}  // namespace moeccl
