// Goes from each rank to those that it waits for, up to ranks that have not told that they wait.
#include "src/comm/awaited.h"

#include <algorithm>

namespace moeccl {

void Awaited::add(std::uint32_t call, int rank, int other) {
  Told& told = byRank_[rank];
  if (told.call != call || Clock::now() - told.at > kHolds) told = {Clock::now(), call, {}};
  told.others.insert(other);
}

std::vector<int> Awaited::atTheEnd(int rank, const std::vector<int>& others) const {
  std::vector<int> next = others, ends;
  std::set<int> seen{rank};
  while (!next.empty()) {
    const int one = next.back();
    next.pop_back();
    if (!seen.insert(one).second) continue;
    const auto told = byRank_.find(one);
    if (told == byRank_.end() || Clock::now() - told->second.at > kHolds)
      ends.push_back(one);
    else
      next.insert(next.end(), told->second.others.begin(), told->second.others.end());
  }
  std::ranges::sort(ends);
  return ends;
}

}  // namespace moeccl
