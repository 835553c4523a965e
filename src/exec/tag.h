// The 64 bits that a message is matched by.
//
//   63        49 48     45 44       39 38       30 29     28 27        16 15         0
//  +------------+---------+-----------+-----------+---------+------------+------------+
//  |  comm (15) | kind (4)| plan (6)  |  call (9) | lane (2)|sequence(12)|source (16) |
//  +------------+---------+-----------+-----------+---------+------------+------------+
//
// comm      communicator, unique among those that any two ranks share
// kind      which collective: ranks that call different ones never match, and time out by name
// plan      which of its algorithms, and how it was told to work: ranks that chose differently, because
//           they came with different counts, never match either
// call      number of the collective call on that communicator, modulo 2^9; a call waits while the one
//           2^9 before it is not over (Communicator::nextCall)
// lane, sequence  the n-th message of this pair on that lane within the call
// source    sender's rank in the root communicator (the transport's numbering)
#pragma once

#include <cstdint>

namespace moeccl {

using Tag = std::uint64_t;

// The kind of messages that tell relays how much they will carry; others are numbers of collectives.
inline constexpr std::uint32_t kCountsKind = 15;

inline constexpr int kCommBits = 15, kKindBits = 4, kPlanBits = 6, kCallBits = 9, kLaneBits = 2,
                     kSequenceBits = 12, kSourceBits = 16;

struct TagFields {
  std::uint32_t comm = 0;
  std::uint32_t kind = 0;
  std::uint32_t plan = 0;
  std::uint32_t call = 0;
  std::uint32_t lane = 0;
  std::uint32_t sequence = 0;
  std::uint32_t source = 0;
};

constexpr Tag makeTag(const TagFields& f) {
  constexpr auto field = [](std::uint64_t value, int bits) {
    return value & ((std::uint64_t{1} << bits) - 1);
  };
  Tag tag = field(f.comm, kCommBits);
  tag = tag << kKindBits | field(f.kind, kKindBits);
  tag = tag << kPlanBits | field(f.plan, kPlanBits);
  tag = tag << kCallBits | field(f.call, kCallBits);
  tag = tag << kLaneBits | field(f.lane, kLaneBits);
  tag = tag << kSequenceBits | field(f.sequence, kSequenceBits);
  return tag << kSourceBits | field(f.source, kSourceBits);
}

constexpr int sourceOf(Tag tag) { return static_cast<int>(tag & ((Tag{1} << kSourceBits) - 1)); }

}  // namespace moeccl
