// Integers modulo the prime 2^61 - 1, in which sums are exact and chance coincidences do not
// happen.
#pragma once

#include <cstdint>

namespace moeccl::verification {

struct Number {
  static constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;

  std::uint64_t value = 0;

  friend Number operator+(Number a, Number b) {
    const std::uint64_t sum = a.value + b.value;
    return {sum >= kPrime ? sum - kPrime : sum};
  }
  friend Number operator*(Number a, Number b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a.value) * b.value;
    const Number low{static_cast<std::uint64_t>(product & kPrime)};
    return low + Number{static_cast<std::uint64_t>(product >> 61)};
  }
  Number& operator+=(Number other) { return *this = *this + other; }
  bool operator==(const Number&) const = default;
};

// A number for the parts of a name, never 0 (splitmix64).
template <typename... Parts>
Number numberFor(std::uint64_t seed, Parts... parts) {
  std::uint64_t state = seed;
  const auto mix = [&](std::uint64_t part) {
    state += 0x9e3779b97f4a7c15u + part;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    state ^= state >> 31;
  };
  (mix(static_cast<std::uint64_t>(parts)), ...);
  return {1 + state % (Number::kPrime - 1)};
}

}  // namespace moeccl::verification
