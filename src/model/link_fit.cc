// Fits the costs of links to measured curves: makes the plans of each curve, and minimises the
// logarithms of price by measurement.
#include "src/model/link_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "algorithms/choice.h"
#include "src/model/alternatives.h"
#include "src/model/group_text.h"
#include "src/model/minimise.h"

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
// The least share of a price that bytes take where its growth tells how fast they go.
constexpr double kBytes = 0.5;
// The least number of sizes of a curve whose growth tells more than its samples do.
constexpr std::size_t kManySizes = 6;
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

// From the last size but one to the last.
std::optional<LinkSamples::Growth> growthOf(const Curve& curve) {
  const double to = curve.samples.back().x;
  const auto after = std::ranges::lower_bound(curve.samples, to, {}, &Point::x);
  if (after == curve.samples.begin()) return std::nullopt;
  const double from = after[-1].x;
  return LinkSamples::Growth{from, to, curve.seconds(to) - curve.seconds(from)};
}

// Nothing where the plans of the curve's algorithm cannot be made.
std::optional<LinkSamples::Priced> pricedCurve(const Fingerprint& cluster, const Curve& curve,
                                               int mostRanks = 0) {
  const auto ranks = static_cast<int>(std::min(
      kMostRanks,
      std::accumulate(cluster.ranksPerNode.begin(), cluster.ranksPerNode.end(), std::int64_t{0})));
  if (ranks < 2) return std::nullopt;
  const std::optional<Collective> collective = collectiveNamed(curve.key.collective);
  const std::optional<GroupText> group =
      groupOf(curve.key.where, mostRanks > 0 ? std::min(mostRanks, ranks) : ranks);
  if (!collective || !group || group->topology.ranks() < 2) return std::nullopt;
  if (needsGrid(*collective) != group->grid.has_value()) return std::nullopt;
  Parameters problem;
  if (group->grid) problem.grid = *group->grid;
  const auto choice = alternativeNamed(*collective, problem, curve.key.algorithm);
  if (!choice) return std::nullopt;
  const Topology& topology = group->topology;
  const int node = largestNode(topology), ours = topology.nodeSize(node);
  const auto plans = plansOf(*choice, topology, node);
  if (!plans) return std::nullopt;
  const Contract contract{*collective, topology.ranks(), problem.grid, problem.experts};
  const int sharing = group->alone ? ours : std::ranges::max(cluster.ranksPerNode);
  return LinkSamples::Priced{
      NodePrice(topology, node, *plans), sharingOf(sharing, ours, cluster.processorsPerNode),
      static_cast<double>(contract.inputBlocks(0)), curve.samples, growthOf(curve)};
}

// The price of a rank's send buffer of `bytes`.
double priceOf(const LinkSamples::Priced& curve, const Links& links, double bytes) {
  return curve.price.seconds(std::ceil(bytes / curve.blocks), links, curve.sharing);
}

// Seconds per byte of large blocks.
double slopeOf(const LinkSamples::Priced& curve, const Links& links) {
  const std::vector<PriceLine> lines = curve.price.lines(links, curve.sharing);
  return std::ranges::max(lines, {}, &PriceLine::beta).beta / curve.blocks;
}

// The growth of a price where the curve's growth is known; nothing where latency is most of the
// price there.
std::optional<double> growthOf(const LinkSamples::Priced& curve, const Links& links) {
  if (!curve.growth) return std::nullopt;
  const auto& [from, to, seconds] = *curve.growth;
  const double price = priceOf(curve, links, to);
  const double grown = price - priceOf(curve, links, from);
  if (grown <= 0 || price - priceOf(curve, links, 0) < kBytes * price) return std::nullopt;
  return grown;
}

}  // namespace

LinkSamples::LinkSamples(const Profile& profile, int mostRanks) {
  for (const Curve& curve : profile.curves())
    if (auto priced = pricedCurve(profile.fingerprint, curve, mostRanks))
      curves_.push_back(std::move(*priced));
  std::size_t steps = 0;
  for (const Priced& curve : curves_) steps += curve.price.steps() * curve.samples.size();
  // A large cluster has many curves: every so many are enough.
  const std::size_t stride = steps / kMostSteps + 1;
  std::size_t index = 0;
  std::erase_if(curves_, [&](const Priced&) { return index++ % stride != 0; });
  for (const Priced& curve : curves_) samples_ += curve.samples.size();
}

std::vector<double> LinkSamples::residualsOf(const std::vector<double>& logarithms,
                                             const Links& typical, double Links::*known,
                                             const std::vector<const Priced*>& growing) const {
  const Links links = linksOf(logarithms, typical);
  std::vector<double> residuals;
  const auto compare = [&](double price, double measured) {
    return huber(std::log(std::max(price, kLeastSeconds) / measured));
  };
  for (const Priced& curve : curves_)
    for (const Point& sample : curve.samples)
      residuals.push_back(compare(priceOf(curve, links, sample.x), sample.seconds));
  for (const Priced* curve : growing) {
    const auto& [from, to, seconds] = *curve->growth;
    residuals.push_back(
        std::sqrt(static_cast<double>(curve->samples.size())) *
        compare(priceOf(*curve, links, to) - priceOf(*curve, links, from), seconds));
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
      errors.push_back(std::abs(priceOf(curve, links, sample.x) / sample.seconds - 1));
  std::ranges::sort(errors);
  return {links, errors[errors.size() / 2], errors.back()};
}

LinkFit LinkSamples::fit(const std::function<bool()>& enough, const Links& typical,
                         double Links::*known) const {
  std::vector<const Priced*> growing;
  const auto residuals = [&](const std::vector<double>& logarithms) {
    return residualsOf(logarithms, typical, known, growing);
  };
  std::vector<double> logarithms = minimise(logarithmsOf(typical), residuals, enough);
  const Links first = linksOf(logarithms, typical);
  for (const Priced& curve : curves_)
    if (curve.samples.size() >= kManySizes && growthOf(curve, first) && curve.growth->seconds > 0)
      growing.push_back(&curve);
  if (!growing.empty()) logarithms = minimise(std::move(logarithms), residuals, enough);
  return judge(linksOf(logarithms, typical));
}

std::optional<LinkFit> fitLinks(const Profile& profile, const std::function<bool()>& enough,
                                const Links& typical, double Links::*known) {
  const LinkSamples samples(profile);
  if (samples.size() == 0) return std::nullopt;
  return samples.fit(enough, typical, known);
}

void growBeyond(Profile& profile) {
  if (!profile.links) return;
  std::vector<std::pair<CurveKey, double>> slopes;
  for (const Curve& curve : profile.curves())
    if (const auto priced = pricedCurve(profile.fingerprint, curve))
      slopes.emplace_back(curve.key, slopeOf(*priced, profile.links->links));
  for (const auto& [key, slope] : slopes) profile.setBeyond(key, slope);
}

}  // namespace moeccl
