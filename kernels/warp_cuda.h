// The lanes of a warp, as lanes.h has them. Sums are made in one order, whatever else runs.
#pragma once

#include "kernels/lanes.h"

namespace moeccl::cuda {

struct Warp {
  static constexpr int kCount = 32;
  static constexpr unsigned kAll = 0xffffffff;

  __device__ static int index() { return static_cast<int>(threadIdx.x % kCount); }
  __device__ static void sync() { __syncwarp(); }
  template <typename T>
  __device__ static T sum(T value) {
    for (int apart = kCount / 2; apart > 0; apart /= 2)
      value += __shfl_xor_sync(kAll, value, apart);
    return value;
  }
  __device__ static double max(double value) {
    for (int apart = kCount / 2; apart > 0; apart /= 2)
      value = ::fmax(value, __shfl_xor_sync(kAll, value, apart));
    return value;
  }
  __device__ static Ranked first(Ranked value) {
    for (int apart = kCount / 2; apart > 0; apart /= 2) {
      const Ranked other{__shfl_xor_sync(kAll, value.key, apart),
                         __shfl_xor_sync(kAll, value.index, apart)};
      if (other.before(value)) value = other;
    }
    return value;
  }
  __device__ static Match match(std::int32_t key) {
    const unsigned same = __match_any_sync(kAll, key);
    return {__popc(same & ((1u << index()) - 1)), __popc(same)};
  }
};

}  // namespace moeccl::cuda
