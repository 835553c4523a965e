// Random numbers that are the same on every rank and with every standard library, whose
// distributions and shuffles differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace moeccl::perf {

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}

  // From 0 to n - 1; n is 1 or more. The first numbers are likelier by n in 2^64: never mind.
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }

  template <typename Values>
  auto oneOf(const Values& values) {
    return values[below(values.size())];
  }

  // From -1 up to but not 1.
  float fraction() {
    return static_cast<float>(static_cast<double>(engine_() >> 40) / (1 << 23) - 1);
  }

  template <typename Value>
  void shuffle(std::vector<Value>& values) {
    for (std::size_t left = values.size(); left > 1; --left)
      std::swap(values[left - 1], values[below(left)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace moeccl::perf
