// What ranks say to each other on a connection, once both have proved themselves (handshake.h).
//
//   dialer                                   acceptor
//                                   ◀──────   welcome            this connection is the pair's
//    message: tag, all its bytes    ──────▶                      with its first bytes, or
//    part: offset                   ──────▶                      as many as it takes, on any
//                                                                connection of the pair
//    message, without a byte of it  ──────▶                      beyond the sender's credit; then
//                                   ◀──────   grant, or refuse   once it is wanted, or never
//    part ...                       ──────▶
//    withdraw: bytes sent           ──────▶                      the sender gives up a message
//                                   ◀──────   freed, credit      the receiver has room again
//    barrier, goodbye               ──────▶
//
// A message may go in either direction, on whoever dialed. Frames follow one another; each begins
// with a header. Integers are little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/exec/tcp_memory.h"

namespace moeccl {

static_assert(std::endian::native == std::endian::little);

enum class FrameKind : std::uint8_t {
  welcome = 1,
  message,
  part,
  grant,
  refuse,
  withdraw,
  credit,
  barrier,
  goodbye,
};

struct FrameHeader {
  FrameKind kind{};
  std::uint8_t announced = 0;  // 1, of a message: it stays with its sender until it is granted
  std::uint8_t reserved[2] = {};
  std::uint32_t payload = 0;  // bytes that follow
  std::uint32_t id = 0;       // of the message, from 1, by its sender
  std::uint32_t freed =
      0;  // bytes of credit that the receiver of messages gives back, on any frame
  std::uint64_t value = 0;  // message: tag; part: offset; withdraw: bytes sent; barrier: round
  std::uint64_t bytes = 0;  // of the whole message
};
static_assert(sizeof(FrameHeader) == 32);

// What a message that nobody has asked for takes of the receiver's memory, and so of its sender's
// credit: its block, if it has a byte, and what is known of it.
inline constexpr std::size_t kMessageCost = 320;
constexpr std::size_t chargeOf(std::size_t bytes) {
  return (bytes > 0 ? MessageMemory::costOf(bytes) : 0) + kMessageCost;
}

// The most bytes of a message in one frame. A frame without data may have to wait for so many, and
// so many are copied for a sender that cancels.
inline constexpr std::size_t kPartBytes = std::size_t{1} << 20;
// Where a pair has several connections, messages are cut so that all carry, but not smaller.
inline constexpr std::size_t kLeastPartBytes = std::size_t{64} << 10;

}  // namespace moeccl
