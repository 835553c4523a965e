// Adds up weighted rows on the host, and computes the gradients of rows and weights. Products are
// fused with sums, in the same order as on GPUs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/reduce_ops.h"
#include "kernels/weigh.h"
#include "kernels/wide.h"

namespace moeccl {
namespace {

template <typename T>
T load(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename Bits>
void store(std::byte* to, std::size_t i, Bits bits) {
  std::memcpy(to + i * sizeof bits, &bits, sizeof bits);
}

constexpr std::size_t kTile = 512;

// Tile by tile, as reductions go (reduce_cpu.cc).
template <typename Format>
struct WeightedSum {
  using Bits = typename Format::Bits;

  [[gnu::always_inline]] static void run(std::byte* dst, const std::byte* const* sources,
                                         const float* weights, std::size_t stride,
                                         std::size_t count, std::size_t bytes) {
    alignas(64) float tile[kTile];
    for (std::size_t at = 0; at < bytes; at += kTile * sizeof(Bits)) {
      const std::size_t size = std::min(kTile, (bytes - at) / sizeof(Bits));
      for (std::size_t i = 0; i < size; ++i)
        tile[i] = weights[0] * Format::decode(load<Bits>(sources[0] + at, i));
      for (std::size_t term = 1; term < count; ++term) {
        const std::byte* const from = sources[term * stride] + at;
        const float weight = weights[term * stride];
        for (std::size_t i = 0; i < size; ++i)
          tile[i] = std::fma(weight, Format::decode(load<Bits>(from, i)), tile[i]);
      }
      for (std::size_t i = 0; i < size; ++i) store<Bits>(dst + at, i, Format::encode(tile[i]));
    }
  }
};

template <typename Format>
struct Gradient {
  using Bits = typename Format::Bits;

  [[gnu::always_inline]] static void run(std::byte* gradient, const std::byte* row, float weight,
                                         std::size_t bytes, float* ofWeight) {
    constexpr std::size_t kSums = 16;  // at once, so that they are vectors
    float sums[kSums] = {};
    const std::size_t elements = bytes / sizeof(Bits), whole = elements / kSums * kSums;
    // Loads come before stores, which might otherwise be to the same memory.
    const auto step = [&](std::size_t at, std::size_t count) {
      float values[kSums];
      for (std::size_t i = 0; i < count; ++i)
        values[i] = Format::decode(load<Bits>(gradient, at + i));
      for (std::size_t i = 0; i < count; ++i)
        sums[i] = std::fma(values[i], Format::decode(load<Bits>(row, at + i)), sums[i]);
      for (std::size_t i = 0; i < count; ++i)
        store<Bits>(gradient, at + i, Format::encode(weight * values[i]));
    };
    for (std::size_t at = 0; at < whole; at += kSums) step(at, kSums);
    step(whole, elements - whole);
    float sum = 0;
    for (const float part : sums) sum += part;
    *ofWeight = sum;
  }
};

template <typename Function>
void withFloat(moecclDataType_t datatype, Function function) {
  if (datatype == moecclFloat32) function(Unchanged<float>{});
  if (datatype == moecclFloat16) function(Float16{});
  if (datatype == moecclBfloat16) function(Bfloat16{});
}

}  // namespace

void addWeighted(moecclDataType_t datatype, std::byte* dst, const std::byte* const* sources,
                 const float* weights, std::size_t stride, std::size_t count, std::size_t bytes) {
  withFloat(datatype, [&]<typename Format>(Format) {
    runWide<WeightedSum<Format>>(dst, sources, weights, stride, count, bytes);
  });
}

float weighGradient(moecclDataType_t datatype, std::byte* gradient, const std::byte* row,
                    float weight, std::size_t bytes) {
  float ofWeight = 0;
  withFloat(datatype, [&]<typename Format>(Format) {
    runWide<Gradient<Format>>(gradient, row, weight, bytes, &ofWeight);
  });
  return ofWeight;
}

void weighGradients(const WeighedRows& rows, float* ofWeights) {
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * rows.rowBytes;
    ofWeights[row] = weighGradient(rows.datatype, rows.gradients + at, rows.rows + at,
                                   rows.weights[row], rows.rowBytes);
  }
}

}  // namespace moeccl
