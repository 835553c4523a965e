// Fills blocks with bytes that follow from source, destination and iteration, and counts elements
// that differ. Bytes of sums are such that every term has places of its own.
#include "perf/common/pattern.h"

#include <algorithm>

namespace moeccl::perf {
namespace {

// splitmix64's finaliser: neighbouring inputs give unrelated bytes.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The bytes of one block in one iteration, one after another.
class Bytes {
 public:
  Bytes(Elements elements, BlockData payload, std::uint64_t iteration)
      : elements_(elements),
        payload_(payload),
        seed_(mix(mix(iteration + 1) + (static_cast<std::uint64_t>(payload.source) << 32) +
                  static_cast<std::uint64_t>(payload.destination))) {}

  std::byte next() {
    if (position_ % sizeof word_ == 0) word_ = mix(seed_ + position_);
    auto byte = static_cast<std::byte>(word_ >> (8 * (position_ % sizeof word_)));
    if (elements_.sums) {
      const std::size_t element = position_ / elements_.bytes;
      const bool highest = position_ % elements_.bytes == elements_.bytes - 1;
      if (highest) byte &= std::byte{0x3f};  // neither a sign nor the exponent of infinity
      if (element % static_cast<std::size_t>(payload_.terms) !=
          static_cast<std::size_t>(payload_.term))
        byte = std::byte{0};
    }
    ++position_;
    return byte;
  }

 private:
  const Elements elements_;
  const BlockData payload_;
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
  std::uint64_t word_ = 0;
};

}  // namespace

void fillBlock(std::span<std::byte> block, Elements elements, BlockData payload,
               std::uint64_t iteration) {
  Bytes bytes(elements, payload, iteration);
  for (std::byte& place : block) place = bytes.next();
}

void poisonBlock(std::span<std::byte> block, Elements elements, BlockData payload,
                 std::uint64_t iteration) {
  Bytes bytes(elements, payload, iteration);
  for (std::byte& place : block) place = ~bytes.next();
}

std::int64_t countWrong(std::span<const std::byte> block, Elements elements, BlockData payload,
                        std::uint64_t iteration) {
  Bytes bytes(elements, payload, iteration);
  std::int64_t wrong = 0;
  for (std::size_t at = 0; at < block.size(); at += elements.bytes) {
    bool differs = false;
    for (std::size_t i = at; i < std::min(at + elements.bytes, block.size()); ++i)
      differs |= block[i] != bytes.next();
    wrong += differs;
  }
  return wrong;
}

}  // namespace moeccl::perf
