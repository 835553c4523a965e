// Gives places to choices on the host, group by group: first choices of all tokens first, then
// second ones, until an expert's places are taken.
#include <algorithm>

#include "kernels/capacity.h"

namespace moeccl {

void assignSlots(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                 std::int64_t groups, std::int64_t* used, std::int64_t* slots) {
  std::fill_n(used, groups * shape.experts, 0);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = std::min(tokens, group * shape.groupTokens);
    const std::int64_t end = std::min(tokens, begin + shape.groupTokens);
    std::int64_t* const usedHere = used + group * shape.experts;
    for (std::int32_t choice = 0; choice < shape.choices; ++choice)
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t at = token * shape.choices + choice;
        slots[at] = -1;
        if (chosen[at] < 0) continue;
        std::int64_t& count = usedHere[chosen[at]];
        if (count < shape.groupSlots) slots[at] = group * shape.groupSlots + count++;
      }
  }
}

}  // namespace moeccl
