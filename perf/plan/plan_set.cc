#include "perf/plan/plan_set.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <stdexcept>

#include "algorithms/choice.h"

namespace moeccl::perf::plan {
namespace {

[[noreturn]] void wrong(const std::string& option, const std::string& text) {
  throw std::runtime_error(option + ": " + text);
}

Topology topologyOf(const Options& options) {
  if (!options.nodeOfRank.empty()) return Topology(options.nodeOfRank);
  const auto ranks =
      std::accumulate(options.ranksPerNode.begin(), options.ranksPerNode.end(), std::int64_t{0});
  if (ranks > kMostRanks)
    wrong("--nodes", std::to_string(ranks) + " ranks are too many to print; at most " +
                         std::to_string(kMostRanks) + " are possible");
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

Grid gridOf(const std::vector<std::string>& words, int ranks) {
  const auto refuse = [&](const std::string& why) {
    std::string text;
    for (const std::string& word : words) (text += text.empty() ? "" : ",") += word;
    wrong("--grid", text + " " + why + "; give MP,EP,ESP, where EP * ESP is the number of ranks, " +
                        std::to_string(ranks) + ", and MP divides it, as in --grid 1," +
                        std::to_string(ranks) + ",1");
  };
  if (words.size() != 3 && (words.size() != 4 || words[3] != "ep-first")) refuse("is no grid");
  std::array<int, 3> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const char* const end = words[i].data() + words[i].size();
    const auto [rest, error] = std::from_chars(words[i].data(), end, sizes[i]);
    if (error != std::errc() || rest != end || sizes[i] < 1 || sizes[i] > ranks)
      refuse("has \"" + words[i] + "\"");
  }
  const Grid grid{sizes[0], sizes[1], sizes[2], words.size() == 3};
  if (grid.ranks() != ranks || ranks % grid.mp != 0) refuse("does not fit");
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
    if (options.grid.empty())
      wrong("--grid", name + " is a collective of a grid; give MP,EP,ESP, as in --grid 1," +
                          std::to_string(ranks) + ",1");
    choice.parameters.grid = gridOf(options.grid, ranks);
    choice.parameters.experts = options.experts;
  } else if (!options.grid.empty()) {
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
