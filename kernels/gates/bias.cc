// Moves the bias of each expert towards an even load by a fixed step.
#include "kernels/gates/gate.h"

namespace moeccl::gates {

void updateBias(const double* assigned, std::int32_t experts, double speed, double* bias) {
  double total = 0;
  for (std::int32_t e = 0; e < experts; ++e) total += assigned[e];
  // Compared without a division, so that an even load is even.
  for (std::int32_t e = 0; e < experts; ++e) {
    const double load = assigned[e] * experts;
    if (load < total) bias[e] += speed;
    if (load > total) bias[e] -= speed;
  }
}

}  // namespace moeccl::gates
