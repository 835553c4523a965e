// Lets experts choose tokens on the host: each takes the largest weights of a group, and gives
// places in the order of tokens.
#include <algorithm>
#include <numeric>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

template <typename Real>
void chooseTokens(const Config& config, std::int64_t tokens, std::int64_t groups, double* keys,
                  std::int64_t* order, std::int32_t* chosen, Real* weights, std::int64_t* used,
                  std::int64_t* slots) {
  const std::int64_t experts = config.experts;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = std::min(tokens, group * config.capacityTokens);
    const std::int64_t count = std::min(tokens - begin, config.capacityTokens);
    const std::int64_t taken = std::min(count, config.capacitySlots);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const auto at = [&](std::int64_t token) { return (begin + token) * experts + expert; };
      for (std::int64_t token = 0; token < count; ++token)
        keys[token] = comparable(static_cast<double>(weights[at(token)]));
      std::iota(order, order + count, std::int64_t{0});
      std::nth_element(order, order + taken, order + count, [keys](std::int64_t a, std::int64_t b) {
        return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
      });
      std::sort(order, order + taken);
      for (std::int64_t i = 0; i < taken; ++i)
        slots[at(order[i])] = group * config.capacitySlots + i;
      for (std::int64_t i = taken; i < count; ++i) {
        slots[at(order[i])] = chosen[at(order[i])] = -1;
        weights[at(order[i])] = 0;
      }
      used[group * experts + expert] = taken;
    }
  }
}

template void chooseTokens(const Config&, std::int64_t, std::int64_t, double*, std::int64_t*,
                           std::int32_t*, float*, std::int64_t*, std::int64_t*);
template void chooseTokens(const Config&, std::int64_t, std::int64_t, double*, std::int64_t*,
                           std::int32_t*, double*, std::int64_t*, std::int64_t*);

}  // namespace moeccl::gates
