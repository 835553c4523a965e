// The machine where dependencies alone order the ops.
//
// An op waits for its dependencies. A receive waits for its send to start, which is when the send's
// dependencies have completed; since receives depend on nothing, a send waits for nothing else, and
// it completes as it starts, whether or not sends wait for their receives.
#include <algorithm>

#include "src/verify/data.h"
#include "src/verify/depth_first.h"
#include "src/verify/job.h"

namespace moeccl::verification {

void checkByDependencies(Job& job) {
  DataFlow data(job);
  const auto waits = [&](std::int64_t op, std::vector<std::int64_t>& list) {
    const Plan& plan = job.plans[job.rankOf[op]];
    const std::int64_t first = job.firstOp[job.rankOf[op]];
    const Op& what = job.at(op);
    if (what.kind == OpKind::recv) list.push_back(job.partnerOf(op));
    for (OpRange range : plan.deps(what))
      for (int d = range.first; d < range.first + range.count; ++d) list.push_back(first + d);
  };
  const auto visit = [&](std::int64_t op) { data.run(op); };
  std::vector<std::int64_t> circle = visitInOrder(job.ops(), waits, visit);
  if (circle.empty()) return;

  // Ranks in the same trouble should say the same, wherever the search began.
  std::rotate(circle.begin(), std::ranges::min_element(circle), circle.end());
  constexpr size_t kShown = 8;
  std::string text = "is in a cyclic wait:";
  for (size_t i = 0; i < circle.size() && i < kShown; ++i)
    text += (i == 0 ? " it waits for " : ", which waits for ") +
            job.name(circle[(i + 1) % circle.size()]);
  if (circle.size() > kShown) text += ", and so on over " + std::to_string(circle.size()) + " ops";
  job.report(job.rankOf[circle[0]], job.indexOf(circle[0]), text);
}

}  // namespace moeccl::verification
