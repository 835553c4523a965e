#include "perf/fit/candidates.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace moeccl::perf {
namespace {

constexpr double kBytesMatter = 2, kCatchesUp = 0.8;
// Times the fastest at either size: who may be the fastest in between.
constexpr double kClose = 1.25;
// What the fastest at one size may take longer than the fastest at the other, there.
constexpr double kLittle = 1.1;

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

std::vector<TimedCandidate> contested(const std::vector<TimedCandidate>& candidates) {
  if (candidates.empty() || candidates[0].before == 0) return {};
  const auto first = std::ranges::min_element(candidates, {}, &TimedCandidate::before);
  const auto second = std::ranges::min_element(candidates, {}, &TimedCandidate::last);
  if (first == second) return {};
  std::vector<TimedCandidate> close;
  std::ranges::copy_if(candidates, std::back_inserter(close), [&](const TimedCandidate& candidate) {
    return candidate.before <= kClose * first->before || candidate.last <= kClose * second->last;
  });
  return close;
}

Halves halve(const std::vector<TimedCandidate>& candidates, const std::vector<double>& halfway) {
  Halves halves{candidates, candidates};
  for (std::size_t i = 0; i < candidates.size(); ++i)
    halves.lower[i].last = halves.upper[i].before = halfway[i];
  for (std::vector<TimedCandidate>* half : {&halves.lower, &halves.upper}) {
    const auto below = std::ranges::min_element(*half, {}, &TimedCandidate::before);
    const auto above = std::ranges::min_element(*half, {}, &TimedCandidate::last);
    const bool little =
        above->before <= kLittle * below->before && below->last <= kLittle * above->last;
    *half = little ? std::vector<TimedCandidate>() : contested(*half);
  }
  return halves;
}

}  // namespace moeccl::perf
