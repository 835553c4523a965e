// The model of a cluster's layers, and what a grid remembers of the questions about them.
#pragma once

#include <memory>
#include <vector>

#include "src/moe/layer_model.h"
#include "src/moe/schedule_choices.h"

namespace moeccl {

struct LayerQuestion {
  moecclMoeConfig_t layer;
  moecclPass_t pass;
  moecclSchedule_t requested;  // by the config or the environment
};

// What follows from a question on a grid: the layer under each schedule that it offers.
struct Subject {
  std::vector<LayerShape> offered;
  std::vector<Pass> passes;
  LayerModel::Free free;
};
// Throws Error for a config that is wrong.
Subject subjectOf(const LayerQuestion& question, const moecclGridShape_t& grid);

class LayerQuestions {
 public:
  // nullptr where it has not been asked lately.
  std::shared_ptr<const ScheduleAnswers> find(const LayerQuestion& question) const;
  void remember(const LayerQuestion& question, std::shared_ptr<const ScheduleAnswers> answers);

  // `number`: of what the grid's calls are chosen by. Without a model for it there are no answers.
  bool isFor(unsigned long number) const { return model_ != nullptr && number_ == number; }
  // Forgets all answers.
  void setModel(std::unique_ptr<LayerModel> model, unsigned long number);
  LayerModel& model() const { return *model_; }

 private:
  struct Answer {
    LayerQuestion question;
    std::shared_ptr<const ScheduleAnswers> answers;
  };
  std::unique_ptr<LayerModel> model_;
  unsigned long number_ = 0;
  std::vector<Answer> answers_;
  std::size_t next_ = 0;  // to be replaced, once there are many
};

// Those of a grid, with a model of what its calls are chosen by now. Throws Error.
LayerQuestions& questionsOf(moecclGrid_t grid);
// What a layer on the grid may run under by itself. Throws Error.
std::vector<LayerModel::Candidate> candidatesOf(moecclGrid_t grid, const moecclMoeConfig_t& config);
// Of a cluster that does not exist. Throws Error.
Cluster clusterOf(const moecclCluster_t& imagined);

}  // namespace moeccl
