// Weights of a token after drops: those of the choices that have a place are multiplied by one
// factor, such that they sum up to what all did. One thread's work, on CPUs and GPUs.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace moeccl::gates {

MOECCL_DEVICE inline bool allKept(std::int64_t choices, const std::int64_t* slots) {
  for (std::int64_t c = 0; c < choices; ++c)
    if (slots[c] < 0) return false;
  return true;
}

// Multiplies the weights of what has a slot; returns the factor, 0 where nothing has or all are 0.
template <typename Real>
MOECCL_DEVICE double renormalizeToken(double sum, std::int64_t choices, const std::int64_t* slots,
                                      Real* weights) {
  if (allKept(choices, slots)) return 1;
  double kept = 0;
  for (std::int64_t c = 0; c < choices; ++c)
    if (slots[c] >= 0) kept += static_cast<double>(weights[c]);
  const double factor = kept > 0 ? sum / kept : 0;
  for (std::int64_t c = 0; c < choices; ++c)
    if (slots[c] >= 0) weights[c] = static_cast<Real>(static_cast<double>(weights[c]) * factor);
  return factor;
}

// From the gradients of those products, 0 for what has no slot, to those of the weights before.
//   w' = sum w / K, K = sum over kept w:   dw = sum / K (dw' - (sum over kept dw' w') / sum)
template <typename Real>
MOECCL_DEVICE void renormalizeTokenBackward(double sum, std::int64_t choices,
                                            const std::int64_t* slots, const Real* weights,
                                            double factor, double* gradients) {
  if (allKept(choices, slots)) return;
  double mean = 0;
  for (std::int64_t c = 0; c < choices; ++c)
    if (slots[c] >= 0) mean += gradients[c] * static_cast<double>(weights[c]) / sum;
  for (std::int64_t c = 0; c < choices; ++c)
    gradients[c] = slots[c] >= 0 ? factor * (gradients[c] - mean) : 0;
}

}  // namespace moeccl::gates
