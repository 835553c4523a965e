// Holds times of collectives against what pairs of ranks took: the least time of a call, and the
// most bytes that left a node in a second. What cannot be true is measured again, and left out.
#include "perf/fit/judgement.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "perf/fit/progress.h"

namespace moeccl::perf {
namespace {

// Pairs are measured with an error, too.
constexpr double kTooFast = 0.5;
// The part of all times that may be impossible.
constexpr double kMostImpossible = 0.1;

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

void Judgement::addPairs(int pairs, const std::vector<Point>& points) {
  for (const Point& point : points) limits_.add(pairs, point.bytes, point.seconds.value);
}

std::vector<std::string> Judgement::reasons(const std::string& text, const GroupSize* group,
                                            const std::vector<Point>& points) const {
  std::vector<std::string> all(points.size());
  for (std::size_t i = 0; i < points.size() && group != nullptr; ++i) {
    const auto& [candidate, bytes, seconds, steady] = points[i];
    const std::string why =
        limits_.whyImpossible(candidate.collective->name, *group, bytes, seconds.value);
    if (!why.empty())
      all[i] = text + ", " + candidate.algorithm + ", " + textOfBytes(bytes) + ": " + why;
  }
  return all;
}

Swept Judgement::judge(const std::string& text, const GroupSize* group,
                       const std::function<Swept()>& measure,
                       const std::function<bool(const std::string&)>& again) {
  Swept swept = measure();
  std::vector<std::string> all = reasons(text, group, swept.points);
  const auto first = std::ranges::find_if(all, [](const std::string& why) { return !why.empty(); });
  if (first != all.end() && !force_ && again(*first)) {
    swept = measure();
    all = reasons(text, group, swept.points);
  }
  std::vector<Point> possible;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ++points_;
    if (!all[i].empty()) impossible_.push_back(all[i]);
    if (all[i].empty() || force_) possible.push_back(std::move(swept.points[i]));
  }
  swept.points = std::move(possible);
  return swept;
}

void Judgement::requirePossible() const {
  if (force_ ||
      static_cast<double>(impossible_.size()) <= kMostImpossible * static_cast<double>(points_))
    return;
  throw NoProfile(std::to_string(impossible_.size()) + " of " + std::to_string(points_) +
                  " times cannot be true, such as " + impossible_[0] +
                  "; see that nothing else runs and that ranks are bound to processors as in " +
                  "training, or write a profile all the same by --force");
}

}  // namespace moeccl::perf
