// What gates decide by the reference of layers, on the logits that the real gates are to compute.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/gate_pass.h"

namespace moeccl::gates {

struct Choice {
  std::int32_t expert;
  double weight;
};

struct ReferenceResult {
  std::vector<std::vector<Choice>> tokens;  // choices of each, in order
  std::vector<double> assigned;             // [experts]
  double loss = 0;
};
// Logits are made of numbers of type Real.
template <typename Real>
ReferenceResult referenceGate(const Batch& batch);

}  // namespace moeccl::gates
