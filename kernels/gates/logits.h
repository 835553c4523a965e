// The product of tokens with a gate's weights on a CPU: chains, as parts.h describes them.
// logits_tile.h has that for GPUs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/gates/parts.h"
#include "kernels/wide.h"

namespace moeccl::gates {

constexpr int kTileTokens = 4;  // that read the weights together

template <typename Real>
struct LogitsRows {
  const Real* inputs[kTileTokens];  // [embedding]; with fewer tokens one is repeated
  const Real* gate;                 // [embedding][experts]
  std::int64_t embedding, experts;
  double* logits[kTileTokens];  // [experts]
};

struct LogitsKernel {
  template <typename Real>
  [[gnu::always_inline]] static void run(LogitsRows<Real> rows) {
    constexpr std::int64_t kWide = 64 / sizeof(Real), kNarrow = kWide / 4;
    std::int64_t expert = 0;
    for (; expert + kWide <= rows.experts; expert += kWide) sum<kWide>(rows, expert);
    for (; expert + kNarrow <= rows.experts; expert += kNarrow) sum<kNarrow>(rows, expert);
    for (; expert < rows.experts; ++expert) sum<1>(rows, expert);
  }

 private:
  template <int kExperts, typename Real>
  [[gnu::always_inline]] static void sum(const LogitsRows<Real>& rows, std::int64_t expert) {
    double sums[kTileTokens][kExperts] = {};
    for (std::int64_t begin = 0; begin < rows.embedding; begin += kChain) {
      const std::int64_t end = std::min<std::int64_t>(begin + kChain, rows.embedding);
      Real chains[kTileTokens][kExperts] = {};
      for (std::int64_t m = begin; m < end; ++m) {
        const Real* const weights = rows.gate + m * rows.experts + expert;
        for (int t = 0; t < kTileTokens; ++t)
#ifndef __clang__
#pragma GCC unroll 1  // a loop that it still sees becomes vectors
#endif
          for (int e = 0; e < kExperts; ++e)
            chains[t][e] = std::fma(rows.inputs[t][m], weights[e], chains[t][e]);
      }
      for (int t = 0; t < kTileTokens; ++t)
        for (int e = 0; e < kExperts; ++e) sums[t][e] += static_cast<double>(chains[t][e]);
    }
    for (int t = 0; t < kTileTokens; ++t) std::copy_n(sums[t], kExperts, rows.logits[t] + expert);
  }
};

template <typename Real>
void computeLogits(const LogitsRows<Real>& rows) {
  runWide<LogitsKernel>(rows);
}

}  // namespace moeccl::gates
