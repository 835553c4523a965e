// Random numbers that are functions of where they are used, not of how many were drawn before: any
// number of ranks, each with some of the tokens, draws the same ones.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/device.h"

namespace moeccl::gates {

// Philox 4x32-10: a keyed bijection of 128 bits whose values pass for random ones (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.2).
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                              std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(even)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Which random numbers a pass uses.
struct Draw {
  std::uint64_t seed = 0;   // of the job
  std::uint64_t step = 0;   // of the training: other noise in each
  std::uint64_t batch = 0;  // among those of one step, such as the number of the MP group
};

// The numbers of one pass; `token` counts within the batch. Ranks agree on the bits of uniform
// numbers always, and on those of normal ones when they run the same C library on CPUs for which it
// takes the same code.
class Random {
 public:
  // The key of a pass is itself drawn, from the seed: neighbouring seeds, steps and batches share
  // nothing.
  explicit Random(const Draw& draw) {
    const std::array<std::uint32_t, 4> bits =
        philox(words(draw.step, draw.batch), split(draw.seed));
    key_ = {bits[0], bits[1]};
  }

  // Four numbers, uniform in (0, 1), multiples of 2^-33.
  MOECCL_DEVICE std::array<double, 4> fourUniform(std::int64_t token, std::int64_t index) const {
    const std::array<std::uint32_t, 4> bits = draw(token, index);
    std::array<double, 4> values;
    for (int i = 0; i < 4; ++i) values[i] = (bits[i] + 0.5) * 0x1p-32;
    return values;
  }
  // Uniform in (0, 1).
  MOECCL_DEVICE double uniform(std::int64_t token, std::int64_t index) const {
    const std::array<std::uint32_t, 4> bits = draw(token, index);
    return open(bits[0], bits[1]);
  }
  // Normal, of mean 0 and variance 1 (Box and Muller 1958).
  MOECCL_DEVICE double normal(std::int64_t token, std::int64_t index) const {
    const std::array<std::uint32_t, 4> bits = draw(token, index);
    return std::sqrt(-2 * std::log(open(bits[0], bits[1]))) *
           std::cos(2 * std::numbers::pi * open(bits[2], bits[3]));
  }

 private:
  static constexpr std::array<std::uint32_t, 2> split(std::uint64_t value) {
    return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
  }
  static constexpr std::array<std::uint32_t, 4> words(std::uint64_t low, std::uint64_t high) {
    return {split(low)[0], split(low)[1], split(high)[0], split(high)[1]};
  }
  // 52 bits and a half: never 0 nor 1, and nothing is rounded.
  static constexpr double open(std::uint32_t low, std::uint32_t high) {
    const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 12;
    return (static_cast<double>(bits) + 0.5) * 0x1p-52;
  }
  MOECCL_DEVICE std::array<std::uint32_t, 4> draw(std::int64_t token, std::int64_t index) const {
    return philox(words(static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(token)),
                  key_);
  }

  std::array<std::uint32_t, 2> key_;
};

}  // namespace moeccl::gates
