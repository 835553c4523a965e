// Drops algorithms that stay far slower than the fastest from size to size, and tells whether
// another one has become the fastest.
#include "perf/fit/candidates.h"

#include <algorithm>
#include <limits>

namespace moeccl::perf {
namespace {

constexpr double kBytesMatter = 2, kCatchesUp = 0.8;

}  // namespace

double fastestOf(const std::vector<TimedCandidate>& candidates) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const TimedCandidate& candidate : candidates) fastest = std::min(fastest, candidate.last);
  return fastest;
}

void dropHopeless(std::vector<TimedCandidate>& candidates, double before) {
  const double fastest = fastestOf(candidates);
  const bool bytesMatter = before > 0 && fastest > kBytesMatter * before;
  for (TimedCandidate& candidate : candidates) {
    const double slower = candidate.last / fastest;
    const bool catchesUp = slower < kCatchesUp * candidate.slower;
    candidate.hopeless =
        bytesMatter && slower > kHopeless && !catchesUp ? candidate.hopeless + 1 : 0;
    candidate.slower = slower;
  }
  std::erase_if(candidates,
                [](const TimedCandidate& candidate) { return candidate.hopeless >= 2; });
}

bool overtaken(const std::vector<TimedCandidate>& candidates) {
  return !candidates.empty() && candidates[0].before > 0 &&
         std::ranges::min_element(candidates, {}, &TimedCandidate::before) !=
             std::ranges::min_element(candidates, {}, &TimedCandidate::last);
}

}  // namespace moeccl::perf
