// Remembers the last answers, until another model is to give them.
#include "src/model/layer_questions.h"

#include <algorithm>
#include <utility>

namespace moeccl {
namespace {

constexpr std::size_t kMost = 64;  // as many as a model has different layers, and more

}  // namespace

std::shared_ptr<const Answers> LayerQuestions::find(const LayerQuestion& question) const {
  const auto known =
      std::ranges::find_if(answers_, [&](const Known& it) { return same(it.question, question); });
  return known == answers_.end() ? nullptr : known->answers;
}

void LayerQuestions::remember(const LayerQuestion& question,
                              std::shared_ptr<const Answers> answers) {
  if (answers_.size() < kMost) {
    answers_.push_back({question, std::move(answers)});
    return;
  }
  answers_[next_] = {question, std::move(answers)};
  next_ = (next_ + 1) % kMost;
}

void LayerQuestions::setModel(std::unique_ptr<LayerModel> model, unsigned long number) {
  model_ = std::move(model);
  number_ = number;
  answers_.clear();
  next_ = 0;
}

}  // namespace moeccl
