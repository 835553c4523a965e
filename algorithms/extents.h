// Where blocks lie in a buffer, and how large they are: the only place where sizes live. A plan
// serves every size; alltoall and alltoallv differ in their extents alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moeccl {

struct Extent {
  std::size_t offset;  // bytes from the start of the buffer
  std::size_t bytes;

  std::size_t end() const { return offset + bytes; }
};

// Pieces begin at a multiple of this where blocks are large enough: GPUs and NCCL are slow
// elsewhere.
inline constexpr std::size_t kPieceAlignment = 16;

// Piece `piece` of `pieces` of a block: whole units, the first pieces one more where they do not
// divide. `unit`, which divides kPieceAlignment and the block: of an element; where there is enough
// for all pieces units are of kPieceAlignment bytes, and what is left behind them is the last
// piece's.
inline Extent pieceOf(Extent block, int piece, int pieces, std::size_t unit) {
  const auto count = static_cast<std::size_t>(pieces), index = static_cast<std::size_t>(piece);
  if (block.bytes / kPieceAlignment >= count) unit = kPieceAlignment;
  const std::size_t units = block.bytes / unit;
  const std::size_t share = units / count, longer = units % count;
  const std::size_t rest = index + 1 == count ? block.bytes % unit : 0;
  return {block.offset + (index * share + std::min(index, longer)) * unit,
          (share + (index < longer ? 1 : 0)) * unit + rest};
}

class Extents {
 public:
  // Blocks of equal size, one after another.
  static Extents uniform(std::size_t bytes) { return Extents(bytes, 1, 1, {}); }
  // The same, each cut into pieces; block b of the plan is piece b modulo `pieces`.
  static Extents cut(std::size_t bytes, int pieces, std::size_t unit) {
    const auto count = static_cast<std::size_t>(pieces);
    if (bytes % (count * (bytes / kPieceAlignment >= count ? kPieceAlignment : unit)) == 0)
      return uniform(bytes / count);
    return Extents(bytes, pieces, unit, {});
  }
  // `extents` must outlive this.
  static Extents table(std::span<const Extent> extents) { return Extents(0, 1, 1, extents); }

  Extent operator[](std::int32_t block) const {
    if (!table_.empty()) return table_[static_cast<std::size_t>(block)];
    if (pieces_ == 1) return {static_cast<std::size_t>(block) * uniform_, uniform_};
    const Extent whole{static_cast<std::size_t>(block / pieces_) * uniform_, uniform_};
    return pieceOf(whole, block % pieces_, pieces_, unit_);
  }
  bool isUniform() const { return table_.empty() && pieces_ == 1; }

 private:
  Extents(std::size_t uniform, int pieces, std::size_t unit, std::span<const Extent> table)
      : uniform_(uniform), pieces_(pieces), unit_(unit), table_(table) {}

  std::size_t uniform_;
  int pieces_;
  std::size_t unit_;
  std::span<const Extent> table_;  // empty: uniform, or cut
};

}  // namespace moeccl
