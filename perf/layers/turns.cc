#include "perf/layers/turns.h"

#include <numeric>

namespace moeccl::perf::layers {

std::vector<double> inTurns(std::size_t candidates, Draws& draws,
                            const std::function<double(std::size_t)>& turn) {
  std::vector<std::size_t> order(candidates);
  std::iota(order.begin(), order.end(), std::size_t{0});
  draws.shuffle(order);
  std::vector<double> values(candidates);
  for (const std::size_t candidate : order) values[candidate] = turn(candidate);
  return values;
}

}  // namespace moeccl::perf::layers
