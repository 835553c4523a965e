// Who is measured when, and what becomes of the times of all ranks: the same for collectives,
// routes and layers.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "perf/common/draws.h"
#include "perf/common/statistics.h"
#include "perf/common/stolen.h"

namespace moeccl::perf {

// What a competitor's turns measured.
struct Turns {
  std::vector<std::vector<double>> values;  // [turn][value], over all ranks
  // Turns that a hypervisor disturbed: those that were repeated, and those that count nevertheless.
  int repeated = 0, disturbed = 0;
};

// Makes of the values of the ranks those of all, place by place. Collective.
using OverRanks =
    std::function<std::vector<double>(const std::vector<double>& mine, Average average)>;

// Each of `count` competitors has `repetitions` turns, each time in another order: what came before
// slows some down, and nobody always follows the same one. turn(competitor) returns what it
// measured on this rank, as many values each time. Disturbed turns are repeated, but not more often
// than there are repetitions; then they count. `draws` are the same on all ranks. Collective.
template <typename Watch = StolenTime>
std::vector<Turns> takeTurns(std::size_t count, int repetitions, Draws& draws, Average average,
                             const OverRanks& overRanks,
                             const std::function<std::vector<double>(std::size_t)>& turn) {
  const auto wanted = static_cast<std::size_t>(repetitions);
  std::vector<Turns> all(count), disturbed(count);
  for (int round = 0; round < 2 * repetitions; ++round) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < count; ++i)
      if (all[i].values.size() < wanted) order.push_back(i);
    if (order.empty()) break;
    draws.shuffle(order);
    std::vector<double> mine, mineDisturbed;
    for (const std::size_t competitor : order) {
      const Watch meanwhile;
      const std::vector<double> values = turn(competitor);
      mineDisturbed.push_back(meanwhile.disturbed() ? 1 : 0);
      mine.insert(mine.end(), values.begin(), values.end());
    }
    const std::vector<double> times = overRanks(mine, average);
    const std::vector<double> wasDisturbed = overRanks(mineDisturbed, Average::kMax);
    const auto each = static_cast<std::ptrdiff_t>(mine.size() / order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto begin = times.begin() + static_cast<std::ptrdiff_t>(i) * each;
      (wasDisturbed[i] > 0 ? disturbed : all)[order[i]].values.emplace_back(begin, begin + each);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<std::vector<double>>& values = all[i].values;
    const std::vector<std::vector<double>>& others = disturbed[i].values;
    const std::size_t missing = wanted - values.size();
    values.insert(values.end(), others.begin(),
                  others.begin() + static_cast<std::ptrdiff_t>(missing));
    all[i].repeated = static_cast<int>(others.size() - missing);
    all[i].disturbed = static_cast<int>(missing);
  }
  return all;
}

}  // namespace moeccl::perf
