// Finds the candidates for a collective once, by the profile's curves or else by prices of plans,
// and keeps them. Questions of any size are then answered from lines and curves.
#include "src/model/cost_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "algorithms/choice.h"
#include "src/model/alternatives.h"

namespace moeccl {
namespace {

// Relays wait for the largest of unequal blocks, and no bound tells by how much these differ. On 16
// ranks they took up to 1.16 times as long as linear where equal blocks would be as fast.
constexpr double kUneven = 1.15;

// The first of those that take least, by secondsOf(candidate).
template <typename Candidates, typename Seconds>
auto& leastOf(Candidates& candidates, const Seconds& secondsOf) {
  auto* best = &candidates.front();
  double lowest = secondsOf(*best);
  for (auto& candidate : candidates)
    if (const double it = secondsOf(candidate); it < lowest) {
      best = &candidate;
      lowest = it;
    }
  return *best;
}

}  // namespace

CostModel::CostModel(Topology topology, std::shared_ptr<const Profile> profile, int ranksOnNode,
                     const Typical& typical, Leaves leaves)
    : topology_(std::move(topology)),
      profile_(std::move(profile)),
      where_(textOf(topology_)),
      links_(typical.links),
      native_(typical.onGpus()),
      leaves_(std::move(leaves)) {
  const int ours = topology_.nodeSize(largestNode(topology_));
  if (ranksOnNode == 0 && profile_ != nullptr && !profile_->fingerprint.ranksPerNode.empty())
    ranksOnNode = std::ranges::max(profile_->fingerprint.ranksPerNode);
  ranksOnNode_ = std::max(ranksOnNode, ours);
  const int processors = profile_ == nullptr ? 0 : profile_->fingerprint.processorsPerNode;
  sharing_ = sharingOf(ranksOnNode_, ours, processors);
  if (profile_ != nullptr && profile_->links) links_ = profile_->links->links;
  static std::atomic<unsigned long> models = 0;
  number_ = ++models;
}

// The curve of `given`, or of another algorithm with the same plans: fits measure one of these,
// with the usual parameters. nullptr: there is none.
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

CostModel::Candidates CostModel::find(Collective collective, const AlgorithmChoice& given) const {
  const Parameters& problem = given.parameters;
  const Contract contract{collective, topology_.ranks(), problem.grid, problem.experts};
  Candidates found{collective, given, static_cast<double>(contract.inputBlocks(0)), {}, false, 0};
  if (profile_ != nullptr && leaves_.empty()) {
    const std::string where = this->where(collective, given);
    if (given.algorithm != nullptr) {
      if (const Curve* curve = curveOf(collective, given, where))
        found.all.push_back({given, curve});
    } else {
      for (const Curve& curve : profile_->curves(nameOf(collective), where))
        if (const auto choice = alternativeNamed(collective, problem, curve.key.algorithm))
          found.all.push_back({*choice, &curve});
    }
  }
  found.measured = !found.all.empty();
  if (found.measured) {
    // The latency is that of all measured candidates, whichever is given: what may be hidden is the
    // exchange's, not an algorithm's.
    found.latency = profile_->latency(nameOf(collective), where(collective, given));
    return found;
  }
  const auto all = pricedCandidates(collective, given, topology_, {links_, sharing_, leaves_});
  for (PricedCandidate priced : *all) {
    priced.choice.parameters.grid = problem.grid;
    if (native_ || !priced.choice.algorithm->native || given.algorithm != nullptr)
      found.all.push_back({priced.choice, nullptr, std::move(priced.lines),
                           PlanFacts{priced.blocksBetween, priced.digest, priced.relays}});
  }
  found.latency = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : found.all)
    found.latency = std::min(found.latency, seconds(found, candidate, 0));
  return found;
}

CostModel::Candidates& CostModel::candidatesOf(Collective collective,
                                               const AlgorithmChoice& given) {
  const auto known = std::ranges::find_if(known_, [&](const Candidates& candidates) {
    return candidates.collective == collective && candidates.given == given;
  });
  if (known == known_.end())
    known_.push_front(find(collective, given));
  else if (known != known_.begin())
    std::iter_swap(known_.begin(), known);
  return known_.front();
}

double CostModel::seconds(const Candidates& candidates, const Candidate& candidate,
                          double bytes) const {
  if (topology_.ranks() == 1) return 0;
  if (candidate.curve != nullptr) return candidate.curve->seconds(bytes);
  const double blockBytes = std::ceil(bytes / std::max(1.0, candidates.blocks));
  double highest = 0;
  for (const PriceLine& line : candidate.lines) highest = std::max(highest, line.at(blockBytes));
  return highest;
}

CostModel::Estimate CostModel::estimate(const Candidates& candidates, const Candidate& candidate,
                                        double bytes) const {
  const double all = seconds(candidates, candidate, bytes);
  return {candidate.choice, all, candidates.measured, std::min(all, candidates.latency)};
}

std::vector<CostModel::Estimate> CostModel::estimates(Collective collective,
                                                      const AlgorithmChoice& given, double bytes) {
  const Candidates& candidates = candidatesOf(collective, given);
  std::vector<Estimate> all;
  for (const Candidate& candidate : candidates.all)
    all.push_back(estimate(candidates, candidate, bytes));
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  return all;
}

CostModel::Estimate CostModel::fastest(Collective collective, const AlgorithmChoice& given,
                                       double bytes) {
  const Candidates& candidates = candidatesOf(collective, given);
  if (candidates.all.empty()) return {given, std::numeric_limits<double>::infinity(), false, 0};
  const auto secondsOf = [&](const Candidate& it) { return seconds(candidates, it, bytes); };
  return estimate(candidates, leastOf(candidates.all, secondsOf), bytes);
}

AlgorithmChoice CostModel::choose(Collective collective, const Parameters& problem,
                                  std::size_t blockBytes,
                                  const std::function<bool(const AlgorithmChoice&)>& serves,
                                  std::size_t padded) {
  if (topology_.ranks() == 1) return {&firstAlgorithm(collective), problem};
  Candidates& candidates = candidatesOf(collective, {nullptr, problem});
  if (candidates.all.empty()) return {&firstAlgorithm(collective), problem};
  const auto secondsOf = [&](Candidate& it) {
    const bool relays = collective == Collective::allToAllv && factsOf(it).relays;
    const std::size_t bytes = relays ? std::max(padded, blockBytes) : blockBytes;
    const double time = seconds(candidates, it, static_cast<double>(bytes) * candidates.blocks);
    return relays ? kUneven * time : time;
  };
  const AlgorithmChoice fastest = leastOf(candidates.all, secondsOf).choice;
  if (!serves || serves(fastest)) return fastest;
  std::vector<std::pair<double, AlgorithmChoice>> others;
  for (Candidate& candidate : candidates.all)
    others.emplace_back(secondsOf(candidate), candidate.choice);
  std::ranges::stable_sort(others, {}, &std::pair<double, AlgorithmChoice>::first);
  for (const auto& [time, next] : others)
    if (serves(next)) return next;
  // A profile may have measured nothing that is served here.
  for (const Algorithm& algorithm : algorithms())
    if (const AlgorithmChoice other{&algorithm, problem};
        algorithm.collective == collective && serves(other))
      return other;
  return fastest;
}

std::optional<double> CostModel::measured(const AlgorithmChoice& choice, std::size_t blockBytes) {
  if (profile_ == nullptr || topology_.ranks() == 1) return std::nullopt;
  const Candidates& candidates = candidatesOf(choice.algorithm->collective, choice);
  if (!candidates.measured) return std::nullopt;
  return seconds(candidates, candidates.all[0],
                 static_cast<double>(blockBytes) * candidates.blocks);
}

void CostModel::prepare(Collective collective, const AlgorithmChoice& given) {
  const Candidates& candidates = candidatesOf(collective, given);
  if (!candidates.measured) return;
  for (const Candidate& candidate : candidates.all) plansOf(collective, given, candidate.choice);
}

CostModel::Candidate* CostModel::candidateOf(Collective collective, const AlgorithmChoice& given,
                                             const AlgorithmChoice& candidate) {
  std::vector<Candidate>& candidates = candidatesOf(collective, given).all;
  const auto known = std::ranges::find(candidates, candidate, &Candidate::choice);
  return known == candidates.end() ? nullptr : &*known;
}

const CostModel::PlanFacts& CostModel::factsOf(Candidate& candidate) const {
  if (!candidate.plans) {
    PlanFacts facts{};
    if (const auto plans = pricedPlans(candidate.choice, topology_, leaves_))
      facts = {plans->price.blocksBetween(), plans->digest, plans->relays};
    candidate.plans = std::optional<PlanFacts>(facts);
  }
  return *candidate.plans;
}

CostModel::PlanFacts CostModel::plansOf(Collective collective, const AlgorithmChoice& given,
                                        const AlgorithmChoice& candidate) {
  Candidate* const known = candidateOf(collective, given, candidate);
  return known == nullptr ? PlanFacts{} : factsOf(*known);
}

double CostModel::bytesBetween(Collective collective, const AlgorithmChoice& given,
                               const AlgorithmChoice& candidate, double bytes) {
  if (topology_.nodes() == 1) return 0;
  return plansOf(collective, given, candidate).blocksBetween * bytes /
         std::max(1.0, candidatesOf(collective, given).blocks);
}

std::uint64_t CostModel::digest(Collective collective, const AlgorithmChoice& given,
                                const AlgorithmChoice& candidate) {
  return plansOf(collective, given, candidate).digest;
}

CostModel::Shares CostModel::inNode(Collective collective, const AlgorithmChoice& given,
                                    const AlgorithmChoice& candidate, double bytes) {
  if (topology_.nodes() == 1) return {1, 1};
  const auto plans = pricedPlans(candidate, topology_, leaves_);
  if (!plans) return {};
  Links inside = links_;
  for (double Links::*cost : {&Links::overheadBetween, &Links::latencyBetween, &Links::betaBetween,
                              &Links::gapUplink, &Links::betaUplink})
    inside.*cost = 0;
  const double block = bytes / std::max(1.0, candidatesOf(collective, given).blocks);
  const auto price = [&](const Links& links, double size) {
    return plans->price.seconds(size, links, sharing_);
  };
  const auto share = [](double part, double all) {
    return all > 0 ? std::clamp(part / all, 0.0, 1.0) : 0;
  };
  const double latency = price(links_, 0), latencyInside = price(inside, 0);
  return {share(latencyInside, latency),
          share(price(inside, block) - latencyInside, price(links_, block) - latency)};
}

Line CostModel::line(Collective collective, const AlgorithmChoice& given,
                     const AlgorithmChoice& candidate) {
  const Candidate* const known = candidateOf(collective, given, candidate);
  if (known == nullptr || topology_.ranks() == 1) return {};
  if (known->curve != nullptr) return known->curve->fit.line;
  std::vector<Point> points;
  for (double bytes = 1 << 10; bytes <= 1 << 26; bytes *= 4)
    points.push_back({bytes, seconds(candidatesOf(collective, given), *known, bytes), 0});
  return fitLine(points).line;
}

}  // namespace moeccl
