// Reduces several arrays to one on the host, tile by tile, and divides sums for averages.
#include <algorithm>
#include <cstring>

#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "kernels/wide.h"

namespace moeccl {
namespace {

// Elements are loaded and stored by memcpy: messages are not always aligned to their type.
template <typename T>
T load(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

// Goes tile by tile. The results of one stay in the first cache while the sources pass by, and each
// loop is over neighbours in memory, which the compiler makes vectors of: nothing else can point
// into the tile. dst may be a source, as all of them have been read when a tile is written.
template <typename Format, typename Op>
struct Reduction {
  using Bits = typename Format::Bits;
  using Value = decltype(Format::decode(Bits{}));
  static constexpr std::size_t kTile = 2048 / sizeof(Value);

  [[gnu::always_inline]] static void run(std::byte* dst, const std::byte* const* sources,
                                         std::size_t stride, std::size_t count, std::size_t bytes) {
    alignas(64) Value tile[kTile];
    for (std::size_t at = 0; at < bytes; at += kTile * sizeof(Bits)) {
      const std::size_t size = std::min(kTile, (bytes - at) / sizeof(Bits));
      for (std::size_t i = 0; i < size; ++i)
        tile[i] = Format::decode(load<Bits>(sources[0] + at, i));
      for (std::size_t term = 1; term < count; ++term) {
        const std::byte* const from = sources[term * stride] + at;
        for (std::size_t i = 0; i < size; ++i)
          tile[i] = Op::combine(tile[i], Format::decode(load<Bits>(from, i)));
      }
      for (std::size_t i = 0; i < size; ++i) {
        const Bits bits = Format::encode(tile[i]);
        std::memcpy(dst + at + i * sizeof(Bits), &bits, sizeof(Bits));
      }
    }
  }
};

}  // namespace

std::size_t sizeOf(moecclDataType_t datatype) {
  switch (datatype) {
    case moecclInt8:
    case moecclUint8:
    case moecclFloat8e4m3:
    case moecclFloat8e5m2:
      return 1;
    case moecclFloat16:
    case moecclBfloat16:
    case moecclInt16:
    case moecclUint16:
      return 2;
    case moecclInt32:
    case moecclUint32:
    case moecclFloat32:
      return 4;
    case moecclInt64:
    case moecclUint64:
    case moecclFloat64:
      return 8;
    default:
      return 0;
  }
}

void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
            const std::byte* const* sources, std::size_t stride, std::size_t count,
            std::size_t bytes) {
  withFormat(datatype, [&]<typename Format>(Format) {
    withOp(op, [&]<typename Op>(Op) {
      runWide<Reduction<Format, Op>>(dst, sources, stride, count, bytes);
    });
  });
}

void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor) {
  withFormat(datatype, [&]<typename Format>(Format) {
    using Bits = typename Format::Bits;
    for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
      const Bits bits = divided<Format>(load<Bits>(data, i), divisor);
      std::memcpy(data + i * sizeof(Bits), &bits, sizeof(Bits));
    }
  });
}

}  // namespace moeccl
