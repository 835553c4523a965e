// The model of a grid's layers, and the answers that it gave to the last questions.
#pragma once

#include <memory>
#include <vector>

#include "src/model/answers.h"
#include "src/model/layer_question.h"

namespace moeccl {

class LayerQuestions {
 public:
  // The answers that are remembered; nullptr where the question has not been asked lately.
  std::shared_ptr<const Answers> find(const LayerQuestion& question) const;
  void remember(const LayerQuestion& question, std::shared_ptr<const Answers> answers);

  // Whether the answers are by the cost model of this number, which the grid's calls are chosen by.
  // Without a model there are none.
  bool isFor(unsigned long number) const { return model_ != nullptr && number_ == number; }
  // Forgets all answers.
  void setModel(std::unique_ptr<LayerModel> model, unsigned long number);
  LayerModel& model() const { return *model_; }

 private:
  struct Known {
    LayerQuestion question;
    std::shared_ptr<const Answers> answers;
  };
  std::unique_ptr<LayerModel> model_;
  unsigned long number_ = 0;
  std::vector<Known> answers_;
  std::size_t next_ = 0;  // to be replaced, once there are many
};

}  // namespace moeccl
