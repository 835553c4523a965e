// Maps regions of blocks of one size, and unmaps those that have been empty longest.
#include "src/exec/tcp_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace moeccl {
namespace {

// Bytes that are kept in any case, for what is known of a few messages.
constexpr std::size_t kLeastKept = std::size_t{1} << 20;
// A kernel allows some 65,000 mappings.
constexpr std::size_t kMostRegions = 1024;

std::size_t wholePages(std::size_t bytes) {
  return roundUp(bytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

MessageMemory::MessageMemory(std::size_t most)
    : most_(std::max(most, kLeastKept)),
      regionBytes_(std::max(kRegionBytes, std::bit_floor(most_ / kMostRegions))) {}

MessageMemory::~MessageMemory() {
  for (const auto& [block, size] : sizes_)
    for (const Regions* regions : {&size.full, &size.open, &size.empty})
      for (const Region& region : *regions) munmap(region.begin, region.bytes);
}

std::byte* MessageMemory::take(std::size_t bytes) {
  const std::size_t block = blockOf(bytes);
  Size& size = sizes_[block];
  if (size.open.empty()) {
    if (size.empty.empty()) map(size, block);
    size.open.splice(size.open.begin(), size.empty, size.empty.begin());
  }
  const auto region = size.open.begin();
  std::byte* taken = region->free;
  if (taken != nullptr)
    std::memcpy(&region->free, taken, sizeof region->free);
  else
    taken = region->begin + region->begun++ * (block + kHead) + kHead;
  std::memcpy(taken - kHead, &region, sizeof region);
  if (++region->used == region->blocks) size.full.splice(size.full.begin(), size.open, region);
  return taken;
}

void MessageMemory::give(std::byte* block, std::size_t bytes) {
  Size& size = sizes_.find(blockOf(bytes))->second;
  Regions::iterator region;
  std::memcpy(&region, block - kHead, sizeof region);
  std::memcpy(block, &region->free, sizeof region->free);
  region->free = block;
  if (region->used == region->blocks) size.open.splice(size.open.begin(), size.full, region);
  if (--region->used > 0) return;
  region->emptied = ++emptied_;
  size.empty.splice(size.empty.begin(), size.open, region);
  while (held_ > most_ && dropOldest()) {
  }
}

// Maps one region more, which is empty.
void MessageMemory::map(Size& size, std::size_t block) {
  Regions made(1);
  Region& region = made.front();
  region.blocks = std::max(std::size_t{1}, regionBytes_ / (block + kHead));
  region.bytes = wholePages(region.blocks * (block + kHead));
  while (held_ + region.bytes > most_ && dropOldest()) {
  }
  void* const begin =
      mmap(nullptr, region.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  region.begin = static_cast<std::byte*>(begin);
  held_ += region.bytes;
  size.empty.splice(size.empty.begin(), made);
}

bool MessageMemory::dropOldest() {
  Regions* oldest = nullptr;
  for (auto& [block, size] : sizes_)
    if (!size.empty.empty() &&
        (oldest == nullptr || size.empty.back().emptied < oldest->back().emptied))
      oldest = &size.empty;
  if (oldest == nullptr) return false;
  munmap(oldest->back().begin, oldest->back().bytes);
  held_ -= oldest->back().bytes;
  oldest->pop_back();
  return true;
}

}  // namespace moeccl
