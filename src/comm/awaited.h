// Who waits for whom in calls that stand still, as ranks tell each other before they give one up. A
// rank may wait for one that only hands on what another has not sent, or that waits in an earlier
// call.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace moeccl {

class Awaited {
 public:
  // How long what a rank has told holds: later it may have changed.
  static constexpr std::chrono::milliseconds kHolds{1000};

  // Notes that `rank` waits for `other` in the call of that number.
  void add(std::uint32_t call, int rank, int other);
  // The ranks for whom all wait in the end, if `rank` waits for `others`: they have not told that
  // they wait. In order; empty where ranks wait in a circle.
  std::vector<int> atTheEnd(int rank, const std::vector<int>& others) const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Told {
    Clock::time_point at{};
    std::uint32_t call = 0;  // in which it waits
    std::set<int> others;
  };
  std::map<int, Told> byRank_;
};

}  // namespace moeccl
