// Memory for messages that came before anybody asked for them. What is given back serves again:
// once warm, a message costs no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace moeccl {

class MessageMemory {
 public:
  explicit MessageMemory(std::size_t mostKept) : mostKept_(mostKept) {}
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;

  using Block = std::unique_ptr<std::byte[]>;
  // Throws std::bad_alloc.
  Block take(std::size_t bytes) {
    const std::size_t size = sizeOf(bytes);
    std::vector<Block>& spare = spare_[classOf(size)];
    if (spare.empty()) {
      spare.reserve(spare.size() + ++made_[classOf(size)]);  // so that giving back needs no memory
      return std::make_unique_for_overwrite<std::byte[]>(size);
    }
    Block block = std::move(spare.back());
    spare.pop_back();
    kept_ -= size;
    return block;
  }
  void give(Block block, std::size_t bytes) {
    const std::size_t size = sizeOf(bytes);
    if (kept_ + size > mostKept_) {
      --made_[classOf(size)];
      return;
    }
    kept_ += size;
    spare_[classOf(size)].push_back(std::move(block));
  }

 private:
  // Powers of two: untouched pages of a block cost nothing.
  static std::size_t sizeOf(std::size_t bytes) {
    return std::bit_ceil(std::max(bytes, std::size_t{256}));
  }
  static std::size_t classOf(std::size_t size) {
    return static_cast<std::size_t>(std::countr_zero(size));
  }

  const std::size_t mostKept_;
  std::size_t kept_ = 0;
  std::array<std::vector<Block>, 64> spare_;  // by the logarithm of their size
  std::array<std::size_t, 64> made_{};
};

}  // namespace moeccl
