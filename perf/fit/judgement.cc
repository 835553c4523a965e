// Holds times of collectives against what pairs of ranks took: the least time of a call, and the
// most bytes that left a node in a second.
#include "perf/fit/judgement.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace moeccl::perf {
namespace {

// Pairs are measured with an error, too.
constexpr double kTooFast = 0.5;

void lower(double& least, double seconds) {
  least = least > 0 ? std::min(least, seconds) : seconds;
}

// That leave the node, whatever the algorithm; 0: it depends on what ranks have in common.
double bytesLeaving(std::string_view collective, const GroupSize& group, std::size_t bytes) {
  if (collective != "alltoall" && collective != "alltoallv") return 0;
  return static_cast<double>(bytes) * group.onNode * (group.ranks - group.onNode) / group.ranks;
}

}  // namespace

void PairLimits::add(int pairs, std::size_t bytes, double seconds) {
  if (pairs == 0) {
    lower(latencyInNode_, seconds);
    return;
  }
  lower(latencyBetween_, seconds);
  const double leaving = pairs * static_cast<double>(bytes) / 2;
  rateBetween_ = std::max(rateBetween_, leaving / seconds);
  bytesBetween_ = std::max(bytesBetween_, leaving);
}

std::string PairLimits::whyImpossible(std::string_view collective, const GroupSize& group,
                                      std::size_t bytes, double seconds) const {
  std::array<char, 160> text{};
  const bool between = group.onNode < group.ranks;
  const double latency = between ? latencyBetween_ : latencyInNode_;
  const double leaving = bytesLeaving(collective, group, bytes), rate = leaving / seconds;
  if (seconds < kTooFast * latency)
    std::snprintf(text.data(), text.size(), "%.3g us, but a pair of ranks takes %.3g us",
                  seconds * 1e6, latency * 1e6);
  else if (leaving <= bytesBetween_ && rate > rateBetween_ / kTooFast)
    std::snprintf(text.data(), text.size(),
                  "%.3g us, in which %.3g GB/s leave a node, but pairs reach %.3g GB/s",
                  seconds * 1e6, rate * 1e-9, rateBetween_ * 1e-9);
  return text.data();
}

}  // namespace moeccl::perf
