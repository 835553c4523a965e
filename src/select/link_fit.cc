#include "src/select/link_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "algorithms/choice.h"
#include "src/cost/minimise.h"
#include "src/profile/group_text.h"
#include "src/select/alternatives.h"

namespace moeccl {
namespace {

// Logarithm of price by measurement beyond which a sample is an outlier.
constexpr double kFar = 0.7;
// How much a cost wants to stay typical, next to one sample.
constexpr double kReluctance = 0.02;
// Costs stay between these parts of the typical ones.
constexpr double kFurthest = 1e5;
// Steps that one look at all samples may go through: keeps a fit within seconds.
constexpr std::size_t kMostSteps = 500'000;
constexpr double kLeastSeconds = 1e-15;
// As many ranks as a cluster that is asked about may have.
constexpr std::int64_t kMostRanks = 1 << 16;

std::vector<double> logarithmsOf(const Links& links) {
  std::vector<double> logarithms;
  for (const auto& [name, cost] : kLinkNames) logarithms.push_back(std::log(links.*cost));
  return logarithms;
}

Links linksOf(const std::vector<double>& logarithms, const Links& typical) {
  Links links;
  for (std::size_t i = 0; i < kLinkCosts; ++i) {
    double Links::*const cost = kLinkNames[i].second;
    links.*cost =
        std::clamp(std::exp(logarithms[i]), typical.*cost / kFurthest, typical.*cost * kFurthest);
  }
  return links;
}

// Squares as long as errors are small, then lines.
double huber(double error) {
  const double size = std::abs(error);
  return size <= kFar ? error : std::copysign(std::sqrt(2 * kFar * size - kFar * kFar), error);
}

}  // namespace

LinkSamples::LinkSamples(const Profile& profile, int mostRanks) {
  const Fingerprint& cluster = profile.fingerprint;
  const auto ranks = static_cast<int>(std::min(
      kMostRanks,
      std::accumulate(cluster.ranksPerNode.begin(), cluster.ranksPerNode.end(), std::int64_t{0})));
  if (ranks < 2) return;
  const int most = mostRanks > 0 ? std::min(mostRanks, ranks) : ranks;
  const int ranksOnNode = std::ranges::max(cluster.ranksPerNode);
  for (const Curve& curve : profile.curves()) {
    const std::optional<Collective> collective = collectiveNamed(curve.key.collective);
    const std::optional<GroupText> group = groupOf(curve.key.where, most);
    if (!collective || !group || group->topology.ranks() < 2) continue;
    if (needsGrid(*collective) != group->grid.has_value()) continue;
    Parameters problem;
    if (group->grid) problem.grid = *group->grid;
    const auto choice = alternativeNamed(*collective, problem, curve.key.algorithm);
    if (!choice) continue;
    const Topology& topology = group->topology;
    const int node = largestNode(topology), ours = topology.nodeSize(node);
    const auto plans = plansOf(*choice, topology, node);
    if (!plans) continue;
    const Contract contract{*collective, topology.ranks(), problem.grid, problem.experts};
    curves_.push_back(
        {NodePrice(topology, node, *plans),
         sharingOf(group->alone ? ours : ranksOnNode, ours, cluster.processorsPerNode),
         static_cast<double>(contract.inputBlocks(0)), curve.samples});
  }
  std::size_t steps = 0;
  for (const Priced& curve : curves_) steps += curve.price.steps() * curve.samples.size();
  // Of a large cluster, every so many curves are enough.
  const std::size_t stride = steps / kMostSteps + 1;
  std::size_t index = 0;
  std::erase_if(curves_, [&](const Priced&) { return index++ % stride != 0; });
  for (const Priced& curve : curves_) samples_ += curve.samples.size();
}

std::vector<double> LinkSamples::residualsOf(const std::vector<double>& logarithms,
                                             const Links& typical, double Links::*known) const {
  const Links links = linksOf(logarithms, typical);
  std::vector<double> residuals;
  for (const Priced& curve : curves_)
    for (const Point& sample : curve.samples) {
      const double seconds =
          curve.price.seconds(std::ceil(sample.x / curve.blocks), links, curve.sharing);
      residuals.push_back(huber(std::log(std::max(seconds, kLeastSeconds) / sample.seconds)));
    }
  const std::vector<double> usual = logarithmsOf(typical);
  for (std::size_t i = 0; i < kLinkCosts; ++i)
    residuals.push_back((kLinkNames[i].second == known ? 1 : kReluctance) *
                        (logarithms[i] - usual[i]));
  return residuals;
}

LinkFit LinkSamples::judge(const Links& links) const {
  std::vector<double> errors;
  for (const Priced& curve : curves_)
    for (const Point& sample : curve.samples)
      errors.push_back(
          std::abs(curve.price.seconds(std::ceil(sample.x / curve.blocks), links, curve.sharing) /
                       sample.seconds -
                   1));
  std::ranges::sort(errors);
  return {links, errors[errors.size() / 2], errors.back()};
}

LinkFit LinkSamples::fit(const std::function<bool()>& enough, const Links& typical,
                         double Links::*known) const {
  const auto residuals = [&](const std::vector<double>& logarithms) {
    return residualsOf(logarithms, typical, known);
  };
  return judge(linksOf(minimise(logarithmsOf(typical), residuals, enough), typical));
}

std::optional<LinkFit> fitLinks(const Profile& profile, const std::function<bool()>& enough,
                                const Links& typical, double Links::*known) {
  const LinkSamples samples(profile);
  if (samples.size() == 0) return std::nullopt;
  return samples.fit(enough, typical, known);
}

}  // namespace moeccl
