#include "perf/fit/candidates.h"

#include <algorithm>
#include <limits>

namespace moeccl::perf {
namespace {

constexpr double kBytesMatter = 2, kCatchesUp = 0.8;

}  // namespace

double fastestOf(const std::vector<Candidate>& candidates) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates) fastest = std::min(fastest, candidate.last);
  return fastest;
}

void dropHopeless(std::vector<Candidate>& candidates, double before) {
  const double fastest = fastestOf(candidates);
  const bool bytesMatter = before > 0 && fastest > kBytesMatter * before;
  for (Candidate& candidate : candidates) {
    const double slower = candidate.last / fastest;
    const bool catchesUp = slower < kCatchesUp * candidate.slower;
    candidate.hopeless =
        bytesMatter && slower > kHopeless && !catchesUp ? candidate.hopeless + 1 : 0;
    candidate.slower = slower;
  }
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.hopeless >= 2; });
}

}  // namespace moeccl::perf
