// SHA-256 and HMAC-SHA256, by libmd: it keeps no global state, so a service thread may use it even
// while the process exits or after a fork, which libcrypto (freed by an exit handler) does not
// allow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace moeccl {

using Digest = std::array<std::byte, 32>;

// The digest of the parts one after another.
Digest sha256(std::initializer_list<std::span<const std::byte>> parts);
// The first eight bytes of a text's digest.
std::uint64_t shortDigest(std::string_view text);
// RFC 2104.
Digest hmacSha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> parts);
// Compares in a time that does not depend on where they differ.
bool equalInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace moeccl
