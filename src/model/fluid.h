// Messages as fluid flows over links that they share.
#pragma once

#include <span>
#include <vector>

namespace moeccl {

// Messages that are alike: they begin at once, pass the same links, and are of the same size.
struct Flow {
  double messages = 0, size = 0;  // size: of all together, in what a capacity carries in 1
  std::vector<int> links = {};    // places in the capacities, each once
};

// When each flow has passed, from when all begin. Messages share links max-min fairly: none can go
// faster but at the cost of one that is no faster. A flow without size takes 0; one without links
// takes 0 too.
std::vector<double> finishTimes(std::span<const Flow> flows, std::span<const double> capacities);

}  // namespace moeccl
