// All rules, by kind.
#pragma once

#include "kernels/gates/expert_choice.h"
#include "kernels/gates/gshard.h"
#include "kernels/gates/noisy.h"
#include "kernels/gates/sigmoid.h"
#include "kernels/gates/softmax.h"

namespace moeccl::gates {

// Calls function(SomeRule{}).
template <typename Function>
auto withRule(Kind kind, Function function) {
  switch (kind) {
    case Kind::noisy:
      return function(NoisyRule{});
    case Kind::gshard:
      return function(GshardRule{});
    case Kind::expertChoice:
      return function(ExpertChoiceRule{});
    case Kind::sigmoid:
      return function(SigmoidRule{});
    case Kind::softmax:
      break;
  }
  return function(SoftmaxRule{});
}

}  // namespace moeccl::gates
