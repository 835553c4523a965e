#include "src/select/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "algorithms/choice.h"
#include "src/select/alternatives.h"

namespace moeccl {

CostModel::CostModel(Topology topology, std::shared_ptr<const Profile> profile, int ranksOnNode)
    : topology_(std::move(topology)), profile_(std::move(profile)), where_(textOf(topology_)) {
  const int ours = topology_.nodeSize(largestNode(topology_));
  if (ranksOnNode == 0 && profile_ != nullptr && !profile_->fingerprint.ranksPerNode.empty())
    ranksOnNode = std::ranges::max(profile_->fingerprint.ranksPerNode);
  ranksOnNode_ = std::max(ranksOnNode, ours);
  const int processors = profile_ == nullptr ? 0 : profile_->fingerprint.processorsPerNode;
  sharing_ = sharingOf(ranksOnNode_, ours, processors);
  if (profile_ != nullptr && profile_->links) links_ = profile_->links->links;
}

// Of another algorithm where that does the same: fits measure one of them, with the usual parameters.
const Curve* CostModel::curveOf(Collective collective, const AlgorithmChoice& given,
                                const std::string& where) const {
  if (const Curve* curve = profile_->find(nameOf(collective), textOf(given), where)) return curve;
  Parameters problem;
  problem.grid = given.parameters.grid;
  problem.experts = given.parameters.experts;
  for (const Curve& curve : profile_->curves(nameOf(collective), where))
    if (const auto other = alternativeNamed(collective, problem, curve.key.algorithm);
        other && samePlans(*other, given, topology_))
      return &curve;
  return nullptr;
}

CostModel::Ways CostModel::find(Collective collective, const AlgorithmChoice& given) const {
  const Parameters& problem = given.parameters;
  const Contract contract{collective, topology_.ranks(), problem.grid, problem.experts};
  Ways found{collective, given, static_cast<double>(contract.inputBlocks(0)), {}, false, {}, 0};
  if (profile_ != nullptr) {
    const std::string where = this->where(collective, given);
    if (given.algorithm != nullptr) {
      if (const Curve* curve = curveOf(collective, given, where))
        found.ways.push_back({given, curve, nullptr, {}, -1});
    } else {
      for (const Curve& curve : profile_->curves(nameOf(collective), where))
        if (const auto choice = alternativeNamed(collective, problem, curve.key.algorithm))
          found.ways.push_back({*choice, &curve, nullptr, {}, -1});
    }
  }
  found.measured = !found.ways.empty();
  if (found.measured) {
    // Of all that were measured, whichever is given: what may be hidden is the exchange's, not an algorithm's.
    found.latency = profile_->latency(nameOf(collective), where(collective, given));
    return found;
  }
  found.priced = pricedWays(collective, given, topology_);
  for (const auto& [choice, price] : *found.priced)
    found.ways.push_back({choice, nullptr, price, price->lines(links_, sharing_), -1});
  found.latency = std::numeric_limits<double>::infinity();
  for (const Way& way : found.ways) found.latency = std::min(found.latency, seconds(found, way, 0));
  return found;
}

CostModel::Ways& CostModel::waysOf(Collective collective, const AlgorithmChoice& given) {
  const auto known = std::ranges::find_if(known_, [&](const Ways& ways) {
    return ways.collective == collective && ways.given == given;
  });
  if (known == known_.end())
    known_.push_front(find(collective, given));
  else if (known != known_.begin())
    std::iter_swap(known_.begin(), known);
  return known_.front();
}

double CostModel::seconds(const Ways& ways, const Way& way, double bytes) const {
  if (topology_.ranks() == 1) return 0;
  if (way.curve != nullptr) return way.curve->seconds(bytes);
  const double blockBytes = std::ceil(bytes / std::max(1.0, ways.blocks));
  double highest = 0;
  for (const PriceLine& line : way.lines) highest = std::max(highest, line.at(blockBytes));
  return highest;
}

CostModel::Estimate CostModel::estimate(const Ways& ways, const Way& way, double bytes) const {
  const double all = seconds(ways, way, bytes);
  return {way.choice, all, ways.measured, std::min(all, ways.latency)};
}

std::size_t CostModel::indexOfFastest(const Ways& ways, double bytes) const {
  std::size_t best = 0;
  double lowest = 0;
  for (std::size_t i = 0; i < ways.ways.size(); ++i) {
    const double it = seconds(ways, ways.ways[i], bytes);
    if (i == 0 || it < lowest) {
      best = i;
      lowest = it;
    }
  }
  return best;
}

std::vector<CostModel::Estimate> CostModel::estimates(Collective collective,
                                                      const AlgorithmChoice& given, double bytes) {
  const Ways& ways = waysOf(collective, given);
  std::vector<Estimate> all;
  for (const Way& way : ways.ways) all.push_back(estimate(ways, way, bytes));
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  return all;
}

CostModel::Estimate CostModel::fastest(Collective collective, const AlgorithmChoice& given,
                                       double bytes) {
  const Ways& ways = waysOf(collective, given);
  if (ways.ways.empty()) return {given, std::numeric_limits<double>::infinity(), false, 0};
  return estimate(ways, ways.ways[indexOfFastest(ways, bytes)], bytes);
}

AlgorithmChoice CostModel::choose(Collective collective, const Parameters& problem,
                                  std::size_t blockBytes) {
  if (topology_.ranks() == 1) return {&firstAlgorithm(collective), problem};
  const Ways& ways = waysOf(collective, {nullptr, problem});
  if (ways.ways.empty()) return {&firstAlgorithm(collective), problem};
  return ways.ways[indexOfFastest(ways, static_cast<double>(blockBytes) * ways.blocks)].choice;
}

void CostModel::prepare(Collective collective, const AlgorithmChoice& given) {
  const Ways& ways = waysOf(collective, given);
  if (!ways.measured) return;
  for (const Way& way : ways.ways) bytesBetween(collective, given, way.choice, 0);
}

double CostModel::bytesBetween(Collective collective, const AlgorithmChoice& given,
                               const AlgorithmChoice& way, double bytes) {
  if (topology_.nodes() == 1) return 0;
  Ways& ways = waysOf(collective, given);
  for (Way& known : ways.ways) {
    if (known.choice != way) continue;
    if (known.blocksBetween < 0) {
      const auto price = known.price != nullptr ? known.price : nodePriceOf(way, topology_);
      known.blocksBetween = price != nullptr ? price->blocksBetween() : 0;
    }
    return known.blocksBetween * bytes / std::max(1.0, ways.blocks);
  }
  return 0;
}

Segment CostModel::line(Collective collective, const AlgorithmChoice& way) {
  if (topology_.ranks() == 1) return {};
  const Ways& ways = waysOf(collective, way);
  std::vector<FeaturePoint> points;
  if (ways.measured)
    for (const Point& sample : ways.ways[0].curve->samples)
      points.push_back({{1, sample.x}, sample.seconds, sample.spread});
  else if (!ways.ways.empty())
    for (double bytes = 1 << 10; bytes <= 1 << 26; bytes *= 4)
      points.push_back({{1, bytes}, seconds(ways, ways.ways[0], bytes), 0});
  if (points.empty()) return {};
  const FeatureFit fit = fitFeatures(points);
  return {0, fit.coefficients[0], fit.coefficients[1]};
}

}  // namespace moeccl
