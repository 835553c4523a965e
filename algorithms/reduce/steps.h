// What reduces are made of.
#pragma once

#include <algorithm>
#include <vector>

#include "algorithms/registry.h"

namespace moeccl::reduce {

// A rank that sends a partial sum, or gets one, and the step of that message.
struct Source {
  int rank;
  int step;
};

// Adds the partial sums of `sources` to the own block, and sends the result to `to`; to.rank -1: it
// is the output. A message's step is at least two above those of the messages that its sum waits
// for.
inline void addAndPass(PlanBuilder& plan, int rank, const std::vector<Source>& sources,
                       const Source& to) {
  BlockList terms = input(0);
  std::vector<OpRange> arrived;
  for (const Source& source : sources) {
    const int place = plan.scratch({rank, 0});
    arrived.push_back({plan.recv({.step = source.step}, source.rank, scratch(place)), 1});
    terms.append(scratch(place));
  }
  // After the last that arrives, and before the result leaves.
  int step = 0;
  for (const Source& source : sources) step = std::max(step, source.step + 1);
  if (to.rank < 0) {
    if (sources.empty())
      plan.copy({}, input(0), output(0));
    else
      plan.reduce({.step = step}, terms, output(0), arrived);
    return;
  }
  if (sources.empty()) {
    plan.send({.step = to.step}, to.rank, input(0));
    return;
  }
  const int sum = plan.scratch({rank, 0});
  const int added = plan.reduce({.step = step}, terms, scratch(sum), arrived);
  plan.send({.step = to.step}, to.rank, scratch(sum), {{added, 1}});
}

}  // namespace moeccl::reduce
