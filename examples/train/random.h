// Numbers that depend on nothing but a seed, a name and an index: every rank can draw its own part
// of a model or a batch, in any order, and all the parts fit.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "real.h"

namespace train {

class Random {
 public:
  Random(std::uint64_t seed, std::string_view name) : key_(mix(seed)) {
    for (const char c : name) key_ = mix(key_ ^ static_cast<unsigned char>(c));
  }

  std::uint64_t bits(std::uint64_t index) const { return mix(key_ + index * kStep); }

  // Standard normal (Box and Muller).
  Real normal(std::uint64_t index) const {
    // Above 0, so that it has a logarithm.
    const double first = (static_cast<double>(bits(2 * index) >> 11) + 1) * 0x1p-53;
    const double second = static_cast<double>(bits(2 * index + 1) >> 11) * 0x1p-53;
    return static_cast<Real>(std::sqrt(-2 * std::log(first)) *
                             std::cos(2 * std::numbers::pi * second));
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;

  // The finaliser of SplitMix64: each bit of the result depends on every bit of the value.
  static std::uint64_t mix(std::uint64_t value) {
    value += kStep;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

  std::uint64_t key_;
};

}  // namespace train
