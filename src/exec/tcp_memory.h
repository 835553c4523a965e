// Memory for messages that came before anybody asked for them, and for what is known of each. It is
// mapped for the purpose, so that what is given up goes back to the system. What is given back
// serves again: once warm, a message costs no allocation.
//
// Blocks of a size share a region; large ones have one each. Regions without a used block are kept
// while all together stay within the bound. The one that has been empty longest goes first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory_resource>

#include "src/base/round_up.h"

namespace moeccl {

class MessageMemory final : public std::pmr::memory_resource {
 public:
  // Empty regions go where all together would take more than `most`, but for a little.
  explicit MessageMemory(std::size_t most);
  ~MessageMemory() override;
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;

  // Throws std::bad_alloc.
  std::byte* take(std::size_t bytes);
  void give(std::byte* block, std::size_t bytes);
  // Mapped for blocks, used or not.
  std::size_t held() const { return held_; }

  // The size of the block that so many bytes get: it has three bits after the first, so that blocks
  // can serve again, and at most an eighth is lost.
  static constexpr std::size_t blockOf(std::size_t bytes) {
    if (bytes <= kSmallest) return kSmallest;
    const std::size_t step = std::bit_floor(bytes - 1) / 8;
    return roundUp(bytes, step);
  }
  // What such a block takes at most where all of its region are used.
  static constexpr std::size_t costOf(std::size_t bytes) {
    const std::size_t block = blockOf(bytes);
    return block + kHead + (block < kRegionBytes / 2 ? 0 : kPageBytes);
  }

 private:
  struct Region {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::size_t blocks = 0, begun = 0, used = 0;  // begun: used since it was mapped
    std::byte* free = nullptr;                    // a list of blocks that were used
    std::uint64_t emptied = 0;                    // when, as a number
  };
  using Regions = std::list<Region>;
  struct Size {
    Regions full, open, empty;  // empty: the latest first
  };

  static constexpr std::size_t kSmallest = 256;
  static constexpr std::size_t kHead = 16;  // before a block: its region
  static constexpr std::size_t kPageBytes = 4096;
  static constexpr std::size_t kRegionBytes = std::size_t{64} << 10;

  void* do_allocate(std::size_t bytes, std::size_t) override { return take(bytes); }
  void do_deallocate(void* block, std::size_t bytes, std::size_t) override {
    give(static_cast<std::byte*>(block), bytes);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  void map(Size& size, std::size_t block);
  bool dropOldest();

  const std::size_t most_;
  const std::size_t regionBytes_;
  std::size_t held_ = 0;
  std::uint64_t emptied_ = 0;
  std::map<std::size_t, Size> sizes_;  // by that of blocks
};

}  // namespace moeccl
