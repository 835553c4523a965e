// Computes the gradients of weighted rows on a GPU: 16 threads for a row, each with one of its 16
// sums.
#include <cmath>

#include "kernels/float_formats.h"
#include "kernels/launch_cuda.h"
#include "kernels/weigh.h"

namespace moeccl::cuda {
namespace {

// As many sums of a row as on CPUs, an element in turn to each, so that results have the same bits.
constexpr int kSums = 16;
constexpr int kRowsOfBlock = kThreads / kSums;
// Elements of each matrix that a thread has in flight.
constexpr int kAtOnce = 8;

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    weighKernel(WeighedRows rows, std::int64_t elements, float* ofWeights) {
  using Bits = typename Format::Bits;
  const int lane = static_cast<int>(threadIdx.x) % kSums;
  const unsigned mates = 0xffffu << (threadIdx.x & kSums);  // those of the row, in the warp
  for (std::int64_t row = std::int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / kSums;
       row < rows.count; row += std::int64_t{gridDim.x} * kRowsOfBlock) {
    Bits* const gradient = reinterpret_cast<Bits*>(rows.gradients) + row * elements;
    const Bits* const factor = reinterpret_cast<const Bits*>(rows.rows) + row * elements;
    const float weight = rows.weights[row];
    float sum = 0;
    for (std::int64_t first = lane; first < elements; first += kSums * kAtOnce) {
      Bits a[kAtOnce] = {}, b[kAtOnce] = {};
      for (int i = 0; i < kAtOnce; ++i)
        if (const std::int64_t at = first + i * kSums; at < elements) {
          a[i] = gradient[at];
          b[i] = factor[at];
        }
      for (int i = 0; i < kAtOnce; ++i)
        if (const std::int64_t at = first + i * kSums; at < elements) {
          const float value = Format::decode(a[i]);
          sum = std::fma(value, Format::decode(b[i]), sum);
          gradient[at] = Format::encode(weight * value);
        }
    }
    float all = 0;
    for (int i = 0; i < kSums; ++i) all += __shfl_sync(mates, sum, i, kSums);
    if (lane == 0) ofWeights[row] = all;
  }
}

}  // namespace

void weighGradients(const WeighedRows& rows, float* ofWeights, void* stream) {
  if (rows.count == 0) return;
  withFloatFormat("rows", rows.datatype, [&]<typename Format>(Format) {
    launchKernel(
        "weighing gradients", weighKernel<Format>,
        gridOf(static_cast<std::uint64_t>((rows.count - 1) / kRowsOfBlock + 1)), kThreads, stream,
        rows, static_cast<std::int64_t>(rows.rowBytes / sizeof(typename Format::Bits)), ofWeights);
  });
}

}  // namespace moeccl::cuda
