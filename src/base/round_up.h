// The least multiple of a number that is not below another.
#pragma once

namespace moeccl {

// Neither is negative, and the result must be a T.
template <typename T>
constexpr T roundUp(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace moeccl
