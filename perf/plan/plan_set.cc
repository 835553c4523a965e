// Makes the plans of all ranks for a collective and an algorithm, and counts their ops and
// messages.
#include "perf/plan/plan_set.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "algorithms/choice.h"
#include "perf/common/collectives.h"

namespace moeccl::perf::plan {
namespace {

[[noreturn]] void wrong(const std::string& option, const std::string& text) {
  throw std::runtime_error(option + ": " + text);
}

Topology topologyOf(const Options& options) {
  if (!options.nodeOfRank.empty()) return Topology(options.nodeOfRank);
  return Topology::uneven(options.ranksPerNode);
}

Collective collectiveOf(const std::string& name) try {
  return readCollective(name);
} catch (const std::invalid_argument& error) {
  throw std::runtime_error(error.what());
}

AlgorithmChoice choiceOf(Collective collective, const std::string& text) try {
  if (text.empty()) return {&firstAlgorithm(collective)};
  const AlgorithmChoice choice = readChoice(collective, text);
  if (choice.algorithm == nullptr)
    wrong("--algorithm", "auto depends on sizes and on what links cost; name an algorithm");
  return choice;
} catch (const std::invalid_argument& error) {
  wrong("--algorithm", error.what());
}

Grid gridOf(const moecclGridShape_t& shape, int ranks) {
  const Grid grid{shape.nMp, shape.nEp, shape.nEsp, shape.order == moecclOrderEspEp};
  if (std::int64_t{shape.nEp} * shape.nEsp != ranks || ranks % grid.mp != 0)
    wrong("--grid", textOf(shape) +
                        " does not fit; give MPxEPxESP, where EP * ESP is the number of ranks, " +
                        std::to_string(ranks) + ", and MP divides it, as in --grid 1x" +
                        std::to_string(ranks) + "x1");
  return grid;
}

}  // namespace

PlanSet plansOf(const Options& options) {
  const Collective collective = collectiveOf(options.collective);
  const std::string name(nameOf(collective));
  Topology topology = topologyOf(options);
  const int ranks = topology.ranks();
  if (options.rank >= ranks)
    wrong("--rank", std::to_string(options.rank) + " is not below the number of ranks, " +
                        std::to_string(ranks));
  AlgorithmChoice choice = choiceOf(collective, options.algorithm);
  if (needsGrid(collective)) {
    if (options.grid.nMp == 0)
      wrong("--grid", name + " is a collective of a grid; give MPxEPxESP, as in --grid 1x" +
                          std::to_string(ranks) + "x1");
    choice.parameters.grid = gridOf(options.grid, ranks);
    choice.parameters.experts = options.experts;
  } else if (options.grid.nMp > 0) {
    wrong("--grid", name + " needs none");
  }
  PlanSet set{{collective, ranks, choice.parameters.grid, choice.parameters.experts},
              choice,
              std::move(topology),
              {}};
  try {
    for (int rank = 0; rank < ranks; ++rank)
      set.plans.push_back(choice.algorithm->plan(set.topology, choice.parameters, rank));
  } catch (const NotOffered& error) {
    wrong("--algorithm", name + " does not offer " + textOf(choice) + " here: " + error.what());
  }
  return set;
}

std::string summaryOf(const PlanSet& set) {
  const Topology& topology = set.topology;
  std::size_t ops = 0, messages = 0, between = 0;
  int steps = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const Plan& plan = set.plans[static_cast<std::size_t>(rank)];
    ops += plan.ops.size();
    for (const Op& op : plan.ops) {
      steps = std::max(steps, op.step + 1);
      if (op.kind != OpKind::send) continue;
      ++messages;
      between += topology.nodeOf(op.peer) != topology.nodeOf(rank);
    }
  }
  const auto some = [](auto count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  return std::string(nameOf(set.contract.collective)) + " by " + textOf(set.choice) + " among " +
         some(topology.ranks(), "rank") + " on " + some(topology.nodes(), "node") + ": " +
         some(ops, "op") + ", " + some(messages, "message") + ", " + std::to_string(between) +
         " of them between nodes, " + some(steps, "step") + " on " +
         some(set.plans[0].lanes, "lane");
}

}  // namespace moeccl::perf::plan
