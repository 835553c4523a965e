#include "perf/layers/turns.h"

#include <numeric>

namespace moeccl::perf::layers {

std::vector<double> inTurns(std::size_t contenders, Draws& draws,
                            const std::function<double(std::size_t)>& turn) {
  std::vector<std::size_t> order(contenders);
  std::iota(order.begin(), order.end(), std::size_t{0});
  draws.shuffle(order);
  std::vector<double> values(contenders);
  for (const std::size_t contender : order) values[contender] = turn(contender);
  return values;
}

}  // namespace moeccl::perf::layers
