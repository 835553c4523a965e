#include "src/select/alternatives.h"

namespace moeccl {
namespace {

struct Trial {
  int Parameters::*parameter;
  int value;
};
// What is tried besides the usual parameters, one at a time. A place in this list is part of messages'
// tags (markOf), which have room for 7.
constexpr Trial kTrials[] = {
    {&Parameters::radix, 4},  {&Parameters::radix, 8},  {&Parameters::leaders, 1},
    {&Parameters::window, 4}, {&Parameters::chunks, 2}, {&Parameters::chunks, 8},
};

}  // namespace

std::vector<AlgorithmChoice> alternatives(Collective collective, const Parameters& problem) {
  std::vector<AlgorithmChoice> all;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != collective) continue;
    all.push_back({&algorithm, problem, 0});
    for (const Trial& trial : kTrials) {
      const int variation = all.back().variation + 1;
      all.push_back({&algorithm, problem, variation});
      all.back().parameters.*trial.parameter = trial.value;
    }
  }
  return all;
}

std::vector<AlgorithmChoice> differentOf(const std::vector<AlgorithmChoice>& all,
                                         const Topology& topology) {
  const int rank = topology.ranksOn(largestNode(topology))[0];
  std::vector<AlgorithmChoice> different;
  std::optional<Plan> usual;
  for (const AlgorithmChoice& choice : all) {
    if (choice.variation == 0) usual.reset();
    try {
      Plan plan = choice.algorithm->plan(topology, choice.parameters, rank);
      if (plan == usual) continue;
      different.push_back(choice);
      if (choice.variation == 0) usual = std::move(plan);
    } catch (const NotOffered&) {
    }
  }
  return different;
}

int largestNode(const Topology& topology) {
  int largest = 0;
  for (int node = 1; node < topology.nodes(); ++node)
    if (topology.nodeSize(node) > topology.nodeSize(largest)) largest = node;
  return largest;
}

std::optional<std::vector<Plan>> plansOf(const AlgorithmChoice& choice, const Topology& topology,
                                         int node) {
  std::vector<Plan> plans;
  try {
    for (int rank : topology.ranksOn(node))
      plans.push_back(choice.algorithm->plan(topology, choice.parameters, rank));
  } catch (const NotOffered&) {
    return std::nullopt;
  }
  return plans;
}

}  // namespace moeccl
