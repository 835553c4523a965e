#include "src/select/automatic.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "src/cost/price.h"

namespace moeccl {
namespace {

// What is tried besides the usual parameters, one at a time.
std::vector<Parameters> variations(const Parameters& usual) {
  std::vector<Parameters> all{usual};
  for (int radix : {4, 8}) {
    all.push_back(usual);
    all.back().radix = radix;
  }
  all.push_back(usual);
  all.back().leaders = 1;
  all.push_back(usual);
  all.back().window = 4;
  return all;
}

std::optional<std::vector<Plan>> plansOfNode(const Algorithm& algorithm, const Topology& topology,
                                             const Parameters& parameters, int node) {
  std::vector<Plan> plans;
  try {
    for (int rank : topology.ranksOn(node))
      plans.push_back(algorithm.plan(topology, parameters, rank));
  } catch (const NotOffered&) {
    return std::nullopt;
  }
  return plans;
}

}  // namespace

AlgorithmChoice chooseAutomatically(Collective collective, const Topology& topology,
                                    const Parameters& problem, std::size_t blockBytes) {
  AlgorithmChoice best{&firstAlgorithm(collective), problem};
  if (topology.ranks() == 1) return best;
  // The largest node has most to do.
  int node = 0;
  for (int other = 1; other < topology.nodes(); ++other)
    if (topology.nodeSize(other) > topology.nodeSize(node)) node = other;
  std::optional<double> lowest;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != collective) continue;
    std::optional<std::vector<Plan>> usual;
    int variation = -1;
    for (const Parameters& parameters : variations(problem)) {
      ++variation;
      auto plans = plansOfNode(algorithm, topology, parameters, node);
      if (!plans || plans == usual) continue;
      const double seconds = price(topology, node, *plans, blockBytes);
      if (!lowest || seconds < *lowest) {
        lowest = seconds;
        best = {&algorithm, parameters, variation};
      }
      if (!usual) usual = std::move(plans);
    }
  }
  return best;
}

const AlgorithmChoice& ChoiceCache::get(Collective collective, const Topology& topology,
                                        const Parameters& problem, std::size_t blockBytes) {
  const int sizeClass = std::bit_width(blockBytes);
  const auto known = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.collective == collective && entry.sizeClass == sizeClass &&
           entry.problem == problem;
  });
  if (known == entries_.end()) {
    const std::size_t typical = sizeClass == 0 ? 0 : std::size_t{3} << sizeClass >> 2;
    entries_.push_front({collective, sizeClass, problem,
                         chooseAutomatically(collective, topology, problem, typical)});
  } else if (known != entries_.begin()) {
    std::iter_swap(entries_.begin(), known);
  }
  return entries_.front().choice;
}

}  // namespace moeccl
