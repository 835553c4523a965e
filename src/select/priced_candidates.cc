#include "src/select/priced_candidates.h"

#include <algorithm>
#include <mutex>

#include "src/select/alternatives.h"

namespace moeccl {
namespace {

struct Question {
  Collective collective;
  AlgorithmChoice given;
  Topology topology;
  Leaves leaves;

  bool operator==(const Question&) const = default;
};

PricedCandidates answer(const Question& question) {
  const AlgorithmChoice& given = question.given;
  const std::vector<AlgorithmChoice> all =
      given.algorithm != nullptr ? std::vector{given}
                                 : alternatives(question.collective, given.parameters);
  PricedCandidates candidates;
  for (const AlgorithmChoice& choice : differentOf(all, question.topology))
    if (auto candidate = pricedCandidate(choice, question.topology, question.leaves))
      candidates.push_back(std::move(*candidate));
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
    std::erase_if(held_, [](const std::weak_ptr<Answer>& answer) { return answer.expired(); });
    for (const std::weak_ptr<Answer>& held : held_)
      if (auto known = held.lock(); known != nullptr && known->question == question) return known;
    auto made = std::make_shared<Answer>(std::move(question));
    held_.push_back(made);
    return made;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Answer>> held_;
};

Answers& answers() {
  static Answers instance;
  return instance;
}

}  // namespace

std::shared_ptr<const PricedCandidates> pricedCandidates(Collective collective,
                                                         const AlgorithmChoice& given,
                                                         const Topology& topology,
                                                         const Leaves& leaves) {
  const std::shared_ptr<Answer> it = answers().find({collective, given, topology, leaves});
  std::call_once(it->once, [&] { it->candidates = answer(it->question); });
  return {it, &it->candidates};
}

std::optional<PricedCandidate> pricedCandidate(const AlgorithmChoice& choice,
                                               const Topology& topology, const Leaves& leaves) {
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
  return PricedCandidate{
      choice,
      std::make_shared<const NodePrice>(topology, node, *plans, native, leaf ? &*leaf : nullptr),
      native ? ~digest : digest};
}

}  // namespace moeccl
