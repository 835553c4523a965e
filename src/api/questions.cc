#include "src/api/questions.h"

#include <algorithm>
#include <utility>

namespace moeccl {
namespace {

constexpr std::size_t kMost = 64;  // as many as a model has different layers, and more

// All that may be wrong; what is random costs nothing.
bool sameGate(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.gate == b.gate && a.jitter == b.jitter && a.importanceWeight == b.importanceWeight &&
         a.loadWeight == b.loadWeight && a.expertGroups == b.expertGroups &&
         a.topGroups == b.topGroups && a.routingScale == b.routingScale &&
         a.sequenceTokens == b.sequenceTokens;
}

bool same(const moecclMoeConfig_t& a, const moecclMoeConfig_t& b) {
  return a.tokens == b.tokens && a.embedding == b.embedding && a.hidden == b.hidden &&
         a.experts == b.experts && a.topK == b.topK && a.capacityFactor == b.capacityFactor &&
         a.capacityGroups == b.capacityGroups && a.chunks == b.chunks &&
         a.activation == b.activation && a.datatype == b.datatype && a.dropless == b.dropless &&
         a.residual == b.residual && sameGate(a, b);
}

bool same(const LayerQuestion& a, const LayerQuestion& b) {
  return a.pass == b.pass && a.requested == b.requested && same(a.layer, b.layer);
}

}  // namespace

std::shared_ptr<const ScheduleAnswers> LayerQuestions::find(const LayerQuestion& question) const {
  const auto known = std::ranges::find_if(
      answers_, [&](const Answer& answer) { return same(answer.question, question); });
  return known == answers_.end() ? nullptr : known->answers;
}

void LayerQuestions::remember(const LayerQuestion& question,
                              std::shared_ptr<const ScheduleAnswers> answers) {
  if (answers_.size() < kMost) {
    answers_.push_back({question, std::move(answers)});
    return;
  }
  answers_[next_] = {question, std::move(answers)};
  next_ = (next_ + 1) % kMost;
}

LayerModel& LayerQuestions::modelFor(const Topology& world, const Grid& grid,
                                     const FixedAlgorithms& fixed,
                                     const std::shared_ptr<const Profile>& profile,
                                     int ranksOnNode) {
  if (!isFor(profile)) {
    model_ = std::make_unique<LayerModel>(world, grid, fixed, profile, ranksOnNode);
    profile_ = profile;
    if (profile != nullptr) model_->prepare(grid);
    answers_.clear();
    next_ = 0;
  }
  return *model_;
}

}  // namespace moeccl
