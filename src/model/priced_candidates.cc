// Finds the candidates of a collective whose plans differ, and their prices. The last answers are
// kept for the whole process.
#include "src/model/priced_candidates.h"

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>

#include "src/model/alternatives.h"

namespace moeccl {
namespace {

struct Question {
  Collective collective;
  AlgorithmChoice given;
  Topology topology;
  Wires wires;

  bool operator==(const Question&) const = default;
};

PricedCandidates answer(const Question& question) {
  const AlgorithmChoice& given = question.given;
  const std::vector<AlgorithmChoice> all =
      given.algorithm != nullptr ? std::vector{given}
                                 : alternatives(question.collective, given.parameters);
  const auto& [links, sharing, leaves] = question.wires;
  PricedCandidates candidates;
  for (const AlgorithmChoice& choice : differentOf(all, question.topology))
    if (const auto plans = pricedPlans(choice, question.topology, leaves))
      candidates.push_back({choice, plans->price.lines(links, sharing),
                            plans->price.blocksBetween(), plans->digest, plans->relays});
  return candidates;
}

struct Answer {
  explicit Answer(Question asked) : question(std::move(asked)) {}

  const Question question;
  std::once_flag once;
  PricedCandidates candidates;
};

class Answers {
 public:
  // The one to this question, perhaps not made yet.
  std::shared_ptr<Answer> find(Question question) {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find_if(
        kept_, [&](const auto& answer) { return answer->question == question; });
    if (known != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, known);
      return kept_.front();
    }
    kept_.push_front(std::make_shared<Answer>(std::move(question)));
    if (kept_.size() > kMost) kept_.pop_back();
    return kept_.front();
  }

 private:
  // An answer for 4096 ranks takes 100 KB.
  static constexpr std::size_t kMost = 256;

  std::mutex mutex_;
  std::list<std::shared_ptr<Answer>> kept_;  // the one last asked for first
};

Answers& answers() {
  static Answers instance;
  return instance;
}

}  // namespace

std::shared_ptr<const PricedCandidates> pricedCandidates(Collective collective,
                                                         const AlgorithmChoice& given,
                                                         const Topology& topology,
                                                         const Wires& wires) {
  Question question{collective, given, topology, wires};
  Grid& grid = question.given.parameters.grid;
  grid.mp = std::min(grid.mp, mpThatMatters(collective));
  const std::shared_ptr<Answer> it = answers().find(std::move(question));
  std::call_once(it->once, [&] { it->candidates = answer(it->question); });
  return {it, &it->candidates};
}

std::optional<PricedPlans> pricedPlans(const AlgorithmChoice& choice, const Topology& topology,
                                       const Leaves& leaves) {
  const int node = largestNode(topology);
  const auto plans = plansOf(choice, topology, node);
  if (!plans) return std::nullopt;
  const bool native = choice.algorithm->native;
  const std::uint64_t digest = digestOf(*plans);
  std::optional<LeafLoad> leaf;
  if (!leaves.empty()) {
    leaf.emplace(topology, leaves);
    for (int rank : leaf->ranks())
      leaf->add(topology.nodeOf(rank) == node
                    ? (*plans)[static_cast<std::size_t>(topology.localOf(rank))]
                    : choice.algorithm->plan(topology, choice.parameters, rank),
                rank);
  }
  return PricedPlans{NodePrice(topology, node, *plans, native, leaf ? &*leaf : nullptr),
                     native ? ~digest : digest, (*plans)[0].relays};
}

}  // namespace moeccl
