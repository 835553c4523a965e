// Quantises rows to float8 and back on a GPU, a warp for each group of kScaled elements.
#include <limits>

#include "kernels/float_formats.h"
#include "kernels/launch_cuda.h"
#include "kernels/quantise.h"
#include "kernels/small_float.h"
#include "kernels/warp_cuda.h"

namespace moeccl::cuda {
namespace {

constexpr int kWarps = kThreads / Warp::kCount;
constexpr int kOfLane = static_cast<int>(kScaled) / Warp::kCount;

// `groups` groups of kScaled elements, groupsOfRow of each row.
struct Groups {
  std::int64_t count, ofRow;

  // Where a group's narrow elements are, and its scale.
  __device__ std::int64_t elementsAt(std::int64_t group) const {
    return group / ofRow * static_cast<std::int64_t>(quantisedBytes(elements())) +
           group % ofRow * static_cast<std::int64_t>(kScaled);
  }
  __device__ std::int64_t scaleAt(std::int64_t group) const {
    return group / ofRow * static_cast<std::int64_t>(quantisedBytes(elements())) +
           static_cast<std::int64_t>(elements()) +
           group % ofRow * static_cast<std::int64_t>(sizeof(float));
  }
  __device__ std::size_t elements() const { return static_cast<std::size_t>(ofRow) * kScaled; }
};

__device__ float largestOfWarp(float value) {
  for (int apart = Warp::kCount / 2; apart > 0; apart /= 2) {
    const float other = __shfl_xor_sync(Warp::kAll, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

// A warp quantises a group, to the same bits as on CPUs.
template <typename Narrow, typename Wide>
__global__ void __launch_bounds__(kThreads)
    quantiseKernel(const std::byte* rows, Groups groups, float most, std::byte* quantised) {
  using Bits = typename Wide::Bits;
  for (std::int64_t group = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / Warp::kCount;
       group < groups.count; group += std::int64_t{gridDim.x} * kWarps) {
    const Bits* const from =
        reinterpret_cast<const Bits*>(rows) + group * static_cast<std::int64_t>(kScaled);
    std::byte* const to = quantised + groups.elementsAt(group);
    float values[kOfLane], high = 0, poison = 0;
    for (int i = 0; i < kOfLane; ++i) values[i] = Wide::decode(from[Warp::index() + i * 32]);
    for (const float value : values) {
      const float size = value < 0 ? -value : value;
      high = size > high ? size : high;
      poison += value * 0;  // NaN from NaN and infinity
    }
    high = largestOfWarp(high);
    float scale = high / most;
    if (scale < std::numeric_limits<float>::min() && high > 0)
      scale = std::numeric_limits<float>::min();
    scale += Warp::sum(poison);
    const float inverse = high > 0 ? 1 / scale : 0;
    for (int i = 0; i < kOfLane; ++i) {
      const auto bits = Narrow::encode(values[i] * inverse);
      to[Warp::index() + i * 32] = static_cast<std::byte>(bits);
    }
    if (Warp::index() == 0) *reinterpret_cast<float*>(quantised + groups.scaleAt(group)) = scale;
  }
}

template <typename Narrow, typename Wide>
__global__ void __launch_bounds__(kThreads)
    dequantiseKernel(const std::byte* quantised, Groups groups, std::byte* rows) {
  using Bits = typename Wide::Bits;
  for (std::int64_t group = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / Warp::kCount;
       group < groups.count; group += std::int64_t{gridDim.x} * kWarps) {
    const std::byte* const from = quantised + groups.elementsAt(group);
    Bits* const to = reinterpret_cast<Bits*>(rows) + group * static_cast<std::int64_t>(kScaled);
    const float scale = *reinterpret_cast<const float*>(quantised + groups.scaleAt(group));
    for (int i = 0; i < kOfLane; ++i) {
      const int at = Warp::index() + i * 32;
      to[at] = Wide::encode(Narrow::decode(static_cast<typename Narrow::Bits>(from[at])) * scale);
    }
  }
}

// Calls function(Narrow{}, Wide{}).
template <typename Function>
void withTypes(moecclDataType_t narrow, moecclDataType_t wide, Function function) {
  withFloatFormat("rows to quantise", wide, [&]<typename Wide>(Wide format) {
    if (narrow == moecclFloat8e4m3) function(Float8e4m3{}, format);
    if (narrow == moecclFloat8e5m2) function(Float8e5m2{}, format);
  });
}

Groups groupsOf(std::size_t rowCount, std::size_t elements) {
  const auto ofRow = static_cast<std::int64_t>(elements / kScaled);
  return {static_cast<std::int64_t>(rowCount) * ofRow, ofRow};
}

unsigned blocksFor(const Groups& groups) {
  return gridOf(static_cast<std::uint64_t>((groups.count - 1) / kWarps + 1));
}

}  // namespace

void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
              std::size_t rowCount, std::size_t elements, std::byte* quantised, void* stream) {
  const Groups groups = groupsOf(rowCount, elements);
  if (groups.count == 0) return;
  withTypes(to, from, [&]<typename Narrow, typename Wide>(Narrow, Wide) {
    launchKernel("quantising rows", quantiseKernel<Narrow, Wide>, blocksFor(groups), kThreads,
                 stream, rows, groups,
                 Narrow::decode(static_cast<typename Narrow::Bits>(Narrow::kLargest)), quantised);
  });
}

void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                std::size_t rowCount, std::size_t elements, std::byte* rows, void* stream) {
  const Groups groups = groupsOf(rowCount, elements);
  if (groups.count == 0) return;
  withTypes(from, to, [&]<typename Narrow, typename Wide>(Narrow, Wide) {
    launchKernel("dequantising rows", dequantiseKernel<Narrow, Wide>, blocksFor(groups), kThreads,
                 stream, quantised, groups, rows);
  });
}

}  // namespace moeccl::cuda
