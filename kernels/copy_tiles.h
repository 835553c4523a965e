// How copies of blocks are spread over the threads of a GPU: which bytes each of them moves.
// Nothing here needs one, so that all of it is tested on hosts.
//
//   a copy   `rows` blocks of rowItems items: vectors of `width` bytes, then the single bytes that
//            are left
//   a tile   what one thread block moves: up to kTileItems items, of several small rows or of a
//            part of one
//   a batch  the copies of one launch, in its parameters; tiles are numbered through all of them
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/copy.h"
#include "kernels/vectors.h"

namespace moeccl {

constexpr std::uint32_t kTileThreads = 256, kTileItems = 4 * kTileThreads;

struct TiledCopy {
  std::byte* dst;
  std::ptrdiff_t dstStride;
  const std::byte* src;
  std::ptrdiff_t srcStride;
  std::uint64_t rows, rowVectors, rowItems;
  std::uint64_t rowTiles;   // tiles of a row; 1 where a tile has several rows
  std::uint32_t tileRows;   // rows of a tile; 1 where a row has several tiles
  std::uint32_t tileItems;  // items of a row in a tile
  std::uint32_t width;

  MOECCL_DEVICE std::uint64_t tiles() const { return (rows + tileRows - 1) / tileRows * rowTiles; }
};

// Nothing to copy has no tile.
MOECCL_DEVICE inline TiledCopy tiled(const BlockCopy& copy) {
  TiledCopy result{copy.dst, copy.dstStride, copy.src, copy.srcStride, 0, 0, 0, 1, 1, 1, 1};
  std::uint64_t bytes = copy.bytes, rows = copy.count < 0 ? 0 : copy.count;
  const bool itself = copy.dst == copy.src && (copy.dstStride == copy.srcStride || rows == 1);
  if (bytes == 0 || rows == 0 || itself) return result;
  const auto block = static_cast<std::ptrdiff_t>(bytes);
  if (copy.dstStride == block && copy.srcStride == block) bytes *= rows, rows = 1;
  if (rows == 1) result.dstStride = result.srcStride = 0;
  result.rows = rows;
  result.width =
      widthOf(addressOf(copy.dst), addressOf(copy.src), result.dstStride, result.srcStride);
  result.rowVectors = bytes / result.width;
  result.rowItems = result.rowVectors + bytes % result.width;
  result.rowTiles = (result.rowItems - 1) / kTileItems + 1;
  if (result.rowTiles == 1) {
    result.tileItems = static_cast<std::uint32_t>(result.rowItems);
    result.tileRows = kTileItems / result.tileItems;
  } else {  // evenly, but in whole warps
    const std::uint64_t even = (result.rowItems - 1) / result.rowTiles + 1;
    result.tileItems = static_cast<std::uint32_t>((even + 31) / 32 * 32);
  }
  return result;
}

// The part of a tile that one of kTileThreads threads moves: loads all of it before it stores
// anything.
template <typename Access>
MOECCL_DEVICE void copyPart(const TiledCopy& copy, std::uint64_t tile, std::uint32_t thread) {
  constexpr int kItems = kTileItems / kTileThreads;
  const std::uint64_t rowGroup = copy.rowTiles == 1 ? tile : tile / copy.rowTiles;
  const std::uint64_t begin = (tile - rowGroup * copy.rowTiles) * copy.tileItems;
  Access values[kItems];
  std::byte* targets[kItems];
  for (int i = 0; i < kItems; ++i) {
    const std::uint32_t item = thread + i * kTileThreads;
    const std::uint32_t rowInTile = item / copy.tileItems;
    const std::uint64_t row = rowGroup * copy.tileRows + rowInTile;
    const std::uint64_t column = begin + (item - rowInTile * copy.tileItems);
    targets[i] = nullptr;
    if (rowInTile >= copy.tileRows || row >= copy.rows || column >= copy.rowItems) continue;
    const auto at = static_cast<std::ptrdiff_t>(row);
    const std::byte* const source = copy.src + at * copy.srcStride;
    std::byte* const target = copy.dst + at * copy.dstStride;
    if (column < copy.rowVectors) {
      values[i] = reinterpret_cast<const Access*>(source)[column];
      targets[i] = target + column * sizeof(Access);
    } else {
      const std::uint64_t byte = copy.rowVectors * sizeof(Access) + (column - copy.rowVectors);
      target[byte] = source[byte];
    }
  }
  for (int i = 0; i < kItems; ++i)
    if (targets[i] != nullptr) *reinterpret_cast<Access*>(targets[i]) = values[i];
}

template <int kCopies>
struct CopyBatch {
  static constexpr int kMost = kCopies;
  TiledCopy copies[kCopies];
  std::uint64_t ends[kCopies];  // where each copy's tiles end
  std::uint32_t count = 0;

  void add(const BlockCopy& copy) {
    const TiledCopy next = tiled(copy);
    if (next.tiles() == 0) return;
    copies[count] = next;
    ends[count] = (count == 0 ? 0 : ends[count - 1]) + next.tiles();
    ++count;
  }
  std::uint64_t tiles() const { return count == 0 ? 0 : ends[count - 1]; }
  MOECCL_DEVICE const TiledCopy& at(std::uint32_t copy) const { return copies[copy]; }
};

// Copies of one block each; threads find out themselves how such a one is spread.
template <int kCopies>
struct SingleBatch {
  static constexpr int kMost = kCopies;
  struct Single {
    std::byte* dst;
    const std::byte* src;
    std::uint64_t bytes;
  };
  Single copies[kCopies];
  std::uint64_t ends[kCopies];
  std::uint32_t count = 0;

  void add(const BlockCopy& copy) {
    const std::uint64_t tiles = tiled(copy).tiles();
    if (tiles == 0) return;
    copies[count] = {copy.dst, copy.src, copy.bytes};
    ends[count] = (count == 0 ? 0 : ends[count - 1]) + tiles;
    ++count;
  }
  std::uint64_t tiles() const { return count == 0 ? 0 : ends[count - 1]; }
  MOECCL_DEVICE TiledCopy at(std::uint32_t copy) const {
    return tiled({copies[copy].dst, 0, copies[copy].src, 0, copies[copy].bytes, 1});
  }
};

template <typename Batch>
MOECCL_DEVICE void copyPart(const Batch& batch, std::uint64_t tile, std::uint32_t thread) {
  std::uint32_t low = 0, high = batch.count - 1;  // the first copy that ends behind the tile
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (batch.ends[middle] > tile)
      high = middle;
    else
      low = middle + 1;
  }
  const TiledCopy& copy = batch.at(low);
  const std::uint64_t first = low == 0 ? 0 : batch.ends[low - 1];
  withWidth(copy.width,
            [&]<typename Access>(Access) { copyPart<Access>(copy, tile - first, thread); });
}

}  // namespace moeccl
