// What a rank and the service of its rendezvous say to each other.
//
//   rank                                    service
//    Greeting: magic, nonce        ───────▶
//                                  ◀───────  Challenge: magic, nonce, proof
//    Join: who I am, proof         ───────▶
//                                  ◀───────  accepted: which process serves
//                                  ◀───────  welcome, when all ranks have joined: which one it is
//    part, bytes                   ───────▶                                      \ as often as
//                                  ◀───────  whole, ranks * bytes                / needed
//                                  ◀───────  failure, text   (instead of any of these)
//    goodbye                       ───────▶  when the rank needs the others no more
//
// The service proves itself first, on however many connections a rank tries; a rank joins on one of
// them at a time, and tries again when that one ends before the service has accepted it (in a crowd
// of strangers the service may have to close it). Integers are little-endian.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "src/bootstrap/digest.h"
#include "src/bootstrap/rendezvous_id.h"

namespace moeccl {

static_assert(std::endian::native == std::endian::little);

// The version of this protocol and of the id.
inline constexpr std::uint16_t kRendezvousVersion = 2;

using Nonce = std::array<std::byte, 32>;
using Magic = std::array<char, 8>;
// The two differ, so that what echoes a greeting does not pass for a service.
inline constexpr Magic kGreetingMagic = {'m', 'o', 'e', 'c', 'c', 'l', '?', kRendezvousVersion};
inline constexpr Magic kChallengeMagic = {'m', 'o', 'e', 'c', 'c', 'l', '!', kRendezvousVersion};

struct Greeting {
  Magic magic;
  Nonce nonce;
};
static_assert(sizeof(Greeting) == 40);

struct Challenge {
  Magic magic;
  Nonce nonce;
  Digest proof;
};
static_assert(sizeof(Challenge) == 72);

struct Arrival {
  std::int32_t ranks;
  std::int32_t rank;
  std::int64_t timeoutMs;  // from now for all to arrive, then per all-gather; negative: for ever
  char name[80];           // "host:pid", for people
};
static_assert(sizeof(Arrival) == 96);

struct Join {
  Arrival arrival;
  Digest proof;
};
static_assert(sizeof(Join) == 128);

enum class MessageKind : std::uint32_t {
  accepted = 1,
  welcome = 2,
  part = 3,
  whole = 4,
  failure = 5,
  goodbye = 6
};

struct MessageHeader {
  MessageKind kind;
  std::int32_t result;  // moecclResult_t of a failure
  std::uint64_t bytes;  // that follow
};
static_assert(sizeof(MessageHeader) == 16);

struct Accepted {
  MessageHeader header;
  char name[80];  // of the service's process, as in an arrival
};
static_assert(sizeof(Accepted) == 96);

// A welcome carries an int32_t, the first rank of the service's process; -1: it has none.

// A whole is at most this long; more is a defect, not a set-up.
inline constexpr std::uint64_t kMaxWholeBytes = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kMaxFailureBytes = 64 << 10;

inline Digest serviceProof(const Secret& secret, const Nonce& rank, const Nonce& service) {
  constexpr std::string_view kLabel = "moeccl service";
  return hmacSha256(secret, {std::as_bytes(std::span(kLabel)), rank, service});
}

inline Digest joinProof(const Secret& secret, const Nonce& rank, const Nonce& service,
                        const Arrival& arrival) {
  constexpr std::string_view kLabel = "moeccl rank";
  return hmacSha256(secret, {std::as_bytes(std::span(kLabel)), rank, service,
                             std::as_bytes(std::span(&arrival, 1))});
}

// From the kernel's generator. Throws Error (moecclSystemError).
void fillRandom(std::span<std::byte> bytes);

}  // namespace moeccl
