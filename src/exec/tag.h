// The 64 bits that a message is matched by.
//
//   63       50  49   48     40 39                       16 15         0
//  +-----------+----+----------+---------------------------+------------+
//  | comm (14) | 0  | call (9) |         what (24)         |source (16) |   of collectives
//  +-----------+----+----------+---------------------------+------------+
//  | comm (14) | 1  | kind (1) |         tag (32)          |source (16) |   of sends and receives
//  +-----------+----+----------+---------------------------+------------+
//
// kind      whose the message is: the caller's, or one by which ranks agree on something
// tag       the caller's: messages of one tag between two ranks match in their order
// comm      communicator, unique among those that any two ranks share
// call      number of the collective call on that communicator, modulo 2^9; a call waits while the
//           one 2^8 before it is not over (HostCommunicator::nextCall)
// what      digest ^ (turn, part, lane, sequence)
//   turn      how often `call` has begun again, modulo 2^9: a message that nobody has taken is none
//             of the same call 2^9 later
//   digest    of all that the ranks of a call must have alike (CallSignature in src/comm/call.h).
//             Ranks that do not call the same never match, but with a chance of 2^-24 where a rank
//             has one message for another, and of 2^-9 at most: messages that differ in the upper
//             bits cannot match
//   part      0: of the data; 1: of the sizes that relays are told before
//   lane, sequence  the n-th message of this pair on that lane within the part
// source    sender's rank in the root communicator (the transport's numbering)
#pragma once

#include <cstdint>

namespace moeccl {

using Tag = std::uint64_t;

inline constexpr int kCommBits = 14, kCallBits = 9, kWhatBits = 24, kSourceBits = 16;
inline constexpr int kMessageBits = 1;  // whether it is of a collective
inline constexpr int kPartBits = 1, kLaneBits = 2, kSequenceBits = 12;

// Parts of a call.
inline constexpr std::uint32_t kData = 0, kSizes = 1;

struct TagFields {
  std::uint32_t comm = 0;
  std::uint32_t call = 0;
  std::uint32_t digest = 0;
  std::uint32_t part = kData;
  std::uint32_t lane = 0;
  std::uint32_t sequence = 0;
  std::uint32_t source = 0;
};

constexpr Tag tagBits(int bits) { return (Tag{1} << bits) - 1; }

// Which message of its pair one is.
constexpr std::uint32_t messageNumber(std::uint32_t part, std::uint32_t lane,
                                      std::uint32_t sequence) {
  std::uint32_t number = part & tagBits(kPartBits);
  number = number << kLaneBits | (lane & tagBits(kLaneBits));
  return number << kSequenceBits | (sequence & tagBits(kSequenceBits));
}

constexpr std::uint32_t turnOf(std::uint32_t call) {
  constexpr int kNumberBits = kPartBits + kLaneBits + kSequenceBits;
  return call >> kCallBits << kNumberBits;
}

constexpr Tag makeTag(const TagFields& f) {
  Tag tag = (f.comm & tagBits(kCommBits)) << kMessageBits;
  tag = tag << kCallBits | (f.call & tagBits(kCallBits));
  const std::uint32_t what = f.digest ^ turnOf(f.call) ^ messageNumber(f.part, f.lane, f.sequence);
  tag = tag << kWhatBits | (what & tagBits(kWhatBits));
  return tag << kSourceBits | (f.source & tagBits(kSourceBits));
}

enum class MessageOwner : std::uint32_t { caller = 0, agreement = 1 };

constexpr Tag makeMessageTag(std::uint32_t comm, MessageOwner kind, std::uint32_t tag,
                             std::uint32_t source) {
  Tag whole = (comm & tagBits(kCommBits)) << kMessageBits | 1;
  whole = whole << (kCallBits + kWhatBits - 32) | static_cast<std::uint32_t>(kind);
  whole = whole << 32 | tag;
  return whole << kSourceBits | (source & tagBits(kSourceBits));
}

// All but the communicator.
inline constexpr int kBitsBelowComm = kMessageBits + kCallBits + kWhatBits + kSourceBits;

// The bits in which messages of one call agree, whatever its ranks take it for.
inline constexpr Tag kSameCall = ~tagBits(kWhatBits + kSourceBits);

// And those of all collectives of a communicator.
inline constexpr Tag kAnyCall = ~tagBits(kCallBits + kWhatBits + kSourceBits);

// The number of the call, modulo 2^kCallBits.
constexpr std::uint32_t callOf(Tag tag) {
  return static_cast<std::uint32_t>(tag >> (kWhatBits + kSourceBits) & tagBits(kCallBits));
}
constexpr int sourceOf(Tag tag) { return static_cast<int>(tag & tagBits(kSourceBits)); }

}  // namespace moeccl
