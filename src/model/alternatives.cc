// Lists every algorithm of a collective with its usual parameters and with other values of one
// parameter at a time. Candidates are compared by digests of their plans.
#include "src/model/alternatives.h"

#include <algorithm>
#include <charconv>

#include "algorithms/choice.h"

namespace moeccl {
namespace {

struct Trial {
  int Parameters::*parameter;
  int value;
};
// Parameters that are tried besides the usual ones, one at a time.
constexpr Trial kTrials[] = {
    {&Parameters::radix, 4},  {&Parameters::radix, 8},  {&Parameters::leaders, 1},
    {&Parameters::window, 4}, {&Parameters::chunks, 2}, {&Parameters::chunks, 8},
};

// Whether `text` is the trial's, as in "radix=4".
bool says(std::string_view text, const Trial& trial) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const auto all = namedParameters();
  const auto named = std::ranges::find(all, trial.parameter, &NamedParameter::value);
  if (named == all.end() || text.substr(0, equals) != named->name) return false;
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] =
      std::from_chars(text.data() + std::min(equals + 1, text.size()), end, value);
  return error == std::errc() && rest == end && value == trial.value;
}

std::optional<Plan> planOf(const AlgorithmChoice& choice, const Topology& topology, int rank) {
  try {
    return choice.algorithm->plan(topology, choice.parameters, rank);
  } catch (const NotOffered&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<AlgorithmChoice> alternatives(Collective collective, const Parameters& problem) {
  std::vector<AlgorithmChoice> all;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != collective) continue;
    all.push_back({&algorithm, problem});
    for (const Trial& trial : kTrials) {
      all.push_back({&algorithm, problem});
      all.back().parameters.*trial.parameter = trial.value;
    }
  }
  return all;
}

std::optional<AlgorithmChoice> alternativeNamed(Collective collective, const Parameters& problem,
                                                std::string_view name) {
  const std::size_t colon = std::min(name.find(':'), name.size());
  AlgorithmChoice choice{findAlgorithm(collective, name.substr(0, colon)), problem};
  if (choice.algorithm == nullptr) return std::nullopt;
  if (colon == name.size()) return choice;
  for (const Trial& trial : kTrials) {
    if (!says(name.substr(colon + 1), trial)) continue;
    choice.parameters.*trial.parameter = trial.value;
    return choice;
  }
  return std::nullopt;
}

bool samePlans(const AlgorithmChoice& one, const AlgorithmChoice& other, const Topology& topology) {
  const auto digest = digestOf(one, topology);
  return digest && digest == digestOf(other, topology);
}

std::vector<AlgorithmChoice> differentOf(const std::vector<AlgorithmChoice>& all,
                                         const Topology& topology) {
  const int node = largestNode(topology);
  std::vector<AlgorithmChoice> different;
  std::vector<std::uint64_t> digests;  // theirs, of the node's first rank
  for (const AlgorithmChoice& choice : all) {
    std::optional<Plan> plan = planOf(choice, topology, topology.ranksOn(node)[0]);
    if (!plan) continue;
    const std::uint64_t digest = digestOf(*plan);
    bool known = false;
    // Whatever one algorithm is told shows in the plan of the first rank.
    for (std::size_t i = 0; i < digests.size() && !known; ++i)
      known =
          digests[i] == digest && different[i].algorithm->native == choice.algorithm->native &&
          (different[i].algorithm == choice.algorithm || samePlans(different[i], choice, topology));
    if (known) continue;
    different.push_back(choice);
    digests.push_back(digest);
  }
  return different;
}

std::optional<std::uint64_t> digestOf(const AlgorithmChoice& choice, const Topology& topology) {
  const auto plans = plansOf(choice, topology, largestNode(topology));
  if (!plans) return std::nullopt;
  return digestOf(*plans);
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
  for (int rank : topology.ranksOn(node)) {
    std::optional<Plan> plan = planOf(choice, topology, rank);
    if (!plan) return std::nullopt;
    plans.push_back(std::move(*plan));
  }
  return plans;
}

}  // namespace moeccl
