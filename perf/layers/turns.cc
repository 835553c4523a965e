#include "perf/layers/turns.h"

#include <numeric>

namespace moeccl::perf::layers {

std::vector<double> inTurns(std::size_t contenders, int repetitions, Draws& draws,
                            const std::function<double(std::size_t)>& turn) {
  std::vector<std::size_t> order(contenders);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<double> values;
  for (int i = 0; i < repetitions; ++i) {
    const std::size_t first = values.size();
    values.resize(first + contenders);
    draws.shuffle(order);
    for (const std::size_t contender : order) values[first + contender] = turn(contender);
  }
  return values;
}

std::vector<std::vector<double>> byContender(const std::vector<double>& values,
                                             std::size_t contenders) {
  std::vector<std::vector<double>> lists(contenders);
  for (std::size_t i = 0; i < values.size(); ++i) lists[i % contenders].push_back(values[i]);
  return lists;
}

}  // namespace moeccl::perf::layers
