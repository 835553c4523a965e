// HMAC over the SHA-256 of libmd.
#include "src/bootstrap/digest.h"

#include <sha2.h>

#include <algorithm>
#include <cstring>

namespace moeccl {

Digest sha256(std::initializer_list<std::span<const std::byte>> parts) {
  SHA2_CTX context;
  SHA256Init(&context);
  for (std::span<const std::byte> part : parts)
    SHA256Update(&context, reinterpret_cast<const std::uint8_t*>(part.data()), part.size());
  Digest digest;
  SHA256Final(reinterpret_cast<std::uint8_t*>(digest.data()), &context);
  return digest;
}

std::uint64_t shortDigest(std::string_view text) {
  const Digest digest = sha256({std::as_bytes(std::span(text))});
  std::uint64_t value;
  std::memcpy(&value, digest.data(), sizeof value);
  return value;
}

Digest hmacSha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::byte, SHA256_BLOCK_LENGTH> inner{}, outer{};
  if (key.size() > inner.size()) {
    const Digest shorter = sha256({key});
    std::copy(shorter.begin(), shorter.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  outer = inner;
  for (std::byte& byte : inner) byte ^= std::byte{0x36};
  for (std::byte& byte : outer) byte ^= std::byte{0x5c};

  SHA2_CTX context;
  SHA256Init(&context);
  SHA256Update(&context, reinterpret_cast<const std::uint8_t*>(inner.data()), inner.size());
  for (std::span<const std::byte> part : parts)
    SHA256Update(&context, reinterpret_cast<const std::uint8_t*>(part.data()), part.size());
  Digest digest;
  SHA256Final(reinterpret_cast<std::uint8_t*>(digest.data()), &context);
  return sha256({outer, digest});
}

bool equalInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference = difference | std::to_integer<std::uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace moeccl
