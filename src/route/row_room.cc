// Finds by bisection the most whole units that everybody can have, and gives what is left to the
// first who want more.
#include "src/route/row_room.h"

#include <algorithm>

namespace moeccl {

std::vector<std::int64_t> sharesOf(std::span<const std::int64_t> wants, std::int64_t room,
                                   std::int64_t unit) {
  std::int64_t units = room / unit;
  const auto unitsOf = [&](std::int64_t rows) { return (rows + unit - 1) / unit; };
  const auto taken = [&](std::int64_t most) {
    std::int64_t sum = 0;
    for (const std::int64_t rows : wants) sum += std::min(unitsOf(rows), most);
    return sum;
  };
  // The most units that everybody can have: all of them fit with `least`, not with `beyond`.
  std::int64_t least = 0, beyond = units + 1;
  while (beyond - least > 1) {
    const std::int64_t most = least + (beyond - least) / 2;
    (taken(most) <= units ? least : beyond) = most;
  }
  units -= taken(least);
  std::vector<std::int64_t> shares;
  for (const std::int64_t rows : wants) {
    std::int64_t its = std::min(unitsOf(rows), least);
    if (unitsOf(rows) > least && units > 0) {
      ++its;
      --units;
    }
    shares.push_back(std::min(rows, its * unit));
  }
  return shares;
}

}  // namespace moeccl
