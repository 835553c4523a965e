// Accesses as wide as addresses allow: a GPU moves memory at full speed 16 bytes a thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"

namespace moeccl {

// Plain integers, so that copying one is a single load or store on a GPU.
template <int kBytes>
struct Vector;
template <>
struct Vector<1> {
  std::uint8_t bits;
};
template <>
struct Vector<2> {
  std::uint16_t bits;
};
template <>
struct Vector<4> {
  std::uint32_t bits;
};
template <>
struct alignas(8) Vector<8> {
  std::uint32_t bits[2];
};
template <>
struct alignas(16) Vector<16> {
  std::uint32_t bits[4];
};

// The largest power of two, 16 at most, that divides all of them. For strides: the sign does not
// matter.
template <typename... Rest>
MOECCL_DEVICE int widthOf(std::uint64_t first, Rest... rest) {
  const std::uint64_t all = (first | ... | static_cast<std::uint64_t>(rest)) | 16;
  return static_cast<int>(all & (~all + 1));
}

MOECCL_DEVICE inline std::uint64_t addressOf(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

// Calls function(Vector<width>{}).
template <typename Function>
MOECCL_DEVICE auto withWidth(int width, Function function) {
  switch (width) {
    case 16:
      return function(Vector<16>{});
    case 8:
      return function(Vector<8>{});
    case 4:
      return function(Vector<4>{});
    case 2:
      return function(Vector<2>{});
    default:
      return function(Vector<1>{});
  }
}

}  // namespace moeccl
