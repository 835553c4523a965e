// Quantises rows to float8 and back on the host. Each group of kScaled elements has a scale, by
// which its largest element becomes the largest float8.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantise.h"
#include "kernels/reduce_ops.h"
#include "kernels/wide.h"

namespace moeccl {
namespace {

template <typename Narrow>
float largest() {
  return Narrow::decode(static_cast<typename Narrow::Bits>(Narrow::kLargest));
}

template <typename Narrow, typename Wide>
struct Quantise {
  [[gnu::always_inline]] static void run(const std::byte* rows, std::size_t groups,
                                         std::size_t groupsOfRow, float most,
                                         std::byte* quantised) {
    using Bits = typename Wide::Bits;
    const std::size_t elements = groupsOfRow * kScaled;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::size_t row = group / groupsOfRow, inRow = group % groupsOfRow;
      const std::byte* const from = rows + group * kScaled * sizeof(Bits);
      std::byte* const to = quantised + row * quantisedBytes(elements);
      alignas(64) float values[kScaled];
      float high = 0, poison = 0;
      for (std::size_t i = 0; i < kScaled; ++i) {
        Bits bits;
        std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
        values[i] = Wide::decode(bits);
      }
      for (std::size_t i = 0; i < kScaled; ++i) {
        const float size = values[i] < 0 ? -values[i] : values[i];
        high = size > high ? size : high;
        poison += values[i] * 0;  // NaN from NaN and infinity
      }
      // The least scale whose inverse is finite; what is smaller still becomes 0.
      float scale = high / most;
      if (scale < std::numeric_limits<float>::min() && high > 0)
        scale = std::numeric_limits<float>::min();
      scale += poison;
      const float inverse = high > 0 ? 1 / scale : 0;
      for (std::size_t i = 0; i < kScaled; ++i) {
        const auto bits = Narrow::encode(values[i] * inverse);
        std::memcpy(to + inRow * kScaled + i, &bits, 1);
      }
      std::memcpy(to + elements + inRow * sizeof scale, &scale, sizeof scale);
    }
  }
};

template <typename Narrow, typename Wide>
struct Dequantise {
  [[gnu::always_inline]] static void run(const std::byte* quantised, std::size_t groups,
                                         std::size_t groupsOfRow, std::byte* rows) {
    using Bits = typename Wide::Bits;
    const std::size_t elements = groupsOfRow * kScaled;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::size_t row = group / groupsOfRow, inRow = group % groupsOfRow;
      const std::byte* const from = quantised + row * quantisedBytes(elements);
      std::byte* const to = rows + group * kScaled * sizeof(Bits);
      float scale;
      std::memcpy(&scale, from + elements + inRow * sizeof scale, sizeof scale);
      for (std::size_t i = 0; i < kScaled; ++i) {
        typename Narrow::Bits narrow;
        std::memcpy(&narrow, from + inRow * kScaled + i, 1);
        const Bits bits = Wide::encode(Narrow::decode(narrow) * scale);
        std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
      }
    }
  }
};

template <typename Function>
void withTypes(moecclDataType_t narrow, moecclDataType_t wide, Function function) {
  const auto withWide = [&]<typename Narrow>(Narrow) {
    if (wide == moecclFloat32) function(Narrow{}, Unchanged<float>{});
    if (wide == moecclFloat16) function(Narrow{}, Float16{});
    if (wide == moecclBfloat16) function(Narrow{}, Bfloat16{});
  };
  if (narrow == moecclFloat8e4m3) withWide(Float8e4m3{});
  if (narrow == moecclFloat8e5m2) withWide(Float8e5m2{});
}

}  // namespace

void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
              std::size_t rowCount, std::size_t elements, std::byte* quantised) {
  const std::size_t ofRow = elements / kScaled;
  withTypes(to, from, [&]<typename Narrow, typename Wide>(Narrow, Wide) {
    runWide<Quantise<Narrow, Wide>>(rows, rowCount * ofRow, ofRow, largest<Narrow>(), quantised);
  });
}

void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                std::size_t rowCount, std::size_t elements, std::byte* rows) {
  const std::size_t ofRow = elements / kScaled;
  withTypes(from, to, [&]<typename Narrow, typename Wide>(Narrow, Wide) {
    runWide<Dequantise<Narrow, Wide>>(quantised, rowCount * ofRow, ofRow, rows);
  });
}

}  // namespace moeccl
