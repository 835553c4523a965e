// What a grid remembers of the questions about its layers.
#pragma once

#include <memory>
#include <vector>

#include "src/api/choices.h"
#include "src/select/layer_model.h"

namespace moeccl {

struct LayerQuestion {
  moecclMoeConfig_t layer;
  moecclPass_t pass;
  moecclSchedule_t requested;  // by the config or the environment
};

class LayerQuestions {
 public:
  // nullptr where it has not been asked lately.
  std::shared_ptr<const ScheduleAnswers> find(const LayerQuestion& question) const;
  void remember(const LayerQuestion& question, std::shared_ptr<const ScheduleAnswers> answers);

  // Forgets everything when the profile is another than last time.
  LayerModel& modelFor(const Topology& world, const Grid& grid, const FixedAlgorithms& fixed,
                       const std::shared_ptr<const Profile>& profile, int ranksOnNode);
  bool isFor(const std::shared_ptr<const Profile>& profile) const {
    return model_ != nullptr && profile_ == profile;
  }

 private:
  struct Answer {
    LayerQuestion question;
    std::shared_ptr<const ScheduleAnswers> answers;
  };
  std::unique_ptr<LayerModel> model_;
  std::shared_ptr<const Profile> profile_;
  std::vector<Answer> answers_;
  std::size_t next_ = 0;  // to be replaced, once there are many
};

}  // namespace moeccl
