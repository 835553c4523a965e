// A trained model whose expectations another one learns, as MoS does in the first part of training
// (DeepSpeed-MoE 4.2): more can be learned from how likely all characters are than from the one
// that came.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model.h"

namespace train {

class Teacher {
 public:
  // From a checkpoint, on the team's grid, which is one stage. It takes as many samples at once as
  // `student`, and knows the same `text` (as in a checkpoint's settings). Collective. Throws
  // std::runtime_error or std::invalid_argument, on all ranks alike.
  Teacher(const std::string& path, const Team& team, const ModelConfig& student,
          const std::string& text, moecclSchedule_t schedule);

  // Of its checkpoint, whatever its name.
  std::uint64_t hash() const { return hash_; }

  const Real* probabilities(const std::int32_t* inputs) { return model_->probabilities(inputs); }

 private:
  Parameters parameters_;
  std::unique_ptr<Model> model_;
  std::uint64_t hash_ = 0;
};

}  // namespace train
