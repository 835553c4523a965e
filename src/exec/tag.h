// The 64 bits that a message is matched by.
//
//   63      62        48 47     44 43        32 31     28 27        16 15         0
//  +-------+------------+---------+------------+---------+------------+------------+
//  |control|  comm (15) | kind (4)|  call (12) | lane (4)|sequence(12)|source (16) |
//  +-------+------------+---------+------------+---------+------------+------------+
//
// comm      communicator, unique among those that any two ranks share
// kind      which collective: ranks that call different ones never match, and time out by name
// call      number of the collective call on that communicator, modulo 2^12; a call waits while the one
//           2^12 before it is not over (Communicator::nextCall)
// lane, sequence  the n-th message of this pair on that lane within the call
// source    sender's rank in the root communicator (the transport's numbering)
// control   1: not a message of a plan (abort notices, goodbyes)
#pragma once

#include <cstdint>

namespace moeccl {

using Tag = std::uint64_t;

// The kind of messages that tell relays how much they will carry; others are numbers of collectives.
inline constexpr std::uint32_t kCountsKind = 15;

inline constexpr int kCommBits = 15, kKindBits = 4, kCallBits = 12, kLaneBits = 4,
                     kSequenceBits = 12, kSourceBits = 16;

struct TagFields {
  bool control = false;
  std::uint32_t comm = 0;
  std::uint32_t kind = 0;
  std::uint32_t call = 0;
  std::uint32_t lane = 0;
  std::uint32_t sequence = 0;
  std::uint32_t source = 0;
};

constexpr Tag makeTag(const TagFields& f) {
  constexpr auto field = [](std::uint64_t value, int bits) {
    return value & ((std::uint64_t{1} << bits) - 1);
  };
  Tag tag = f.control;
  tag = tag << kCommBits | field(f.comm, kCommBits);
  tag = tag << kKindBits | field(f.kind, kKindBits);
  tag = tag << kCallBits | field(f.call, kCallBits);
  tag = tag << kLaneBits | field(f.lane, kLaneBits);
  tag = tag << kSequenceBits | field(f.sequence, kSequenceBits);
  return tag << kSourceBits | field(f.source, kSourceBits);
}

}  // namespace moeccl
