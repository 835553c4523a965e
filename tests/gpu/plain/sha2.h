/* A plain SHA-256 in the place of libmd's, for machines that do not have that: FIPS 180-4, by the
 * letter. */
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define SHA256_BLOCK_LENGTH 64

namespace plain_sha2 {

__extension__ using Wide = unsigned __int128;

// The largest x of up to 40 bits with x^power <= value.
constexpr std::uint64_t root(Wide value, int power) {
  std::uint64_t x = 0;
  for (int bit = 39; bit >= 0; --bit) {
    const Wide next = x | std::uint64_t{1} << bit;
    if (power == 2 ? next * next <= value : next <= value / next / next) x = next;
  }
  return x;
}

// The first 32 bits behind the point of the roots of the first primes: square roots (5.3.3), cube
// roots (4.2.2).
template <int kPower, std::size_t kCount>
constexpr std::array<std::uint32_t, kCount> rootsOfPrimes() {
  std::array<std::uint32_t, kCount> words{};
  std::size_t found = 0;
  for (unsigned n = 2; found < kCount; ++n) {
    bool prime = true;
    for (unsigned d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (prime) words[found++] = static_cast<std::uint32_t>(root(Wide{n} << 32 * kPower, kPower));
  }
  return words;
}

inline constexpr auto kFirst = rootsOfPrimes<2, 8>();
inline constexpr auto kRounds = rootsOfPrimes<3, 64>();

}  // namespace plain_sha2

struct SHA2_CTX {
  std::array<std::uint32_t, 8> state;
  std::uint64_t bytes;
  std::uint8_t block[SHA256_BLOCK_LENGTH];
};

inline void SHA256Init(SHA2_CTX* context) {
  context->state = plain_sha2::kFirst;
  context->bytes = 0;
}

// 6.2.2
inline void plainSha256Block(SHA2_CTX* context) {
  using std::rotr;
  std::uint32_t w[64];
  for (int t = 0; t < 16; ++t) {
    const std::uint8_t* const at = context->block + 4 * t;
    w[t] =
        std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
  }
  for (int t = 16; t < 64; ++t)
    w[t] = (rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10) + w[t - 7] +
           (rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 16];
  auto [a, b, c, d, e, f, g, h] = context->state;
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t one = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                              plain_sha2::kRounds[static_cast<std::size_t>(t)] + w[t];
    const std::uint32_t two =
        (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const std::uint32_t words[] = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) context->state[i] += words[i];
}

inline void SHA256Update(SHA2_CTX* context, const std::uint8_t* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    context->block[context->bytes++ % SHA256_BLOCK_LENGTH] = data[i];
    if (context->bytes % SHA256_BLOCK_LENGTH == 0) plainSha256Block(context);
  }
}

inline void SHA256Final(std::uint8_t* digest, SHA2_CTX* context) {
  const std::uint64_t bits = 8 * context->bytes;
  const std::uint8_t one = 0x80, zero = 0;
  SHA256Update(context, &one, 1);
  while (context->bytes % SHA256_BLOCK_LENGTH != SHA256_BLOCK_LENGTH - 8)
    SHA256Update(context, &zero, 1);
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto byte = static_cast<std::uint8_t>(bits >> shift);
    SHA256Update(context, &byte, 1);
  }
  for (int i = 0; i < 32; ++i)
    digest[i] = static_cast<std::uint8_t>(context->state[static_cast<std::size_t>(i / 4)] >>
                                          (24 - i % 4 * 8));
}
