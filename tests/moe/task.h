// What a layer is to learn in a pass, and what it has learned.
#pragma once

#include <vector>

#include "tests/moe/problem.h"

namespace moeccl::test {

constexpr double kAuxiliaryLossScale = 0.7;

struct Task {
  Problem problem;
  Solved solved;
  std::vector<std::vector<double>> outputGradients;  // by batch
  std::vector<moe_reference::Gradients> expected;  // by batch; of experts' weights: of all batches
};
// The problem in training, and by the reference what comes of it.
Task taskOf(Problem problem);

// Gives all of them the sum of their gradients of experts' weights.
void addOverBatches(std::vector<moe_reference::Gradients>& all);

// What a rank gets.
struct Learned {
  moe_reference::Elements input, gate, noise, w1, b1, w2, b2;
  moe_reference::Elements residualW1, residualB1, residualW2, residualB2;
};
// Room for gradients like the rank's shard of them; `before`: what is there.
Learned roomFor(moecclDataType_t datatype, const moe_reference::Gradients& shard, double before);

// Throws where a rank's gradients are not what is expected: off by more than the tolerance, as
// moe_reference::largestError has it, and by more than rounding explains.
void checkLearned(const Problem& problem, const Learned& learned,
                  const moe_reference::Gradients& expected, double tolerance,
                  bool onlyInput = false);
// Throws where a rank's gradients differ, by more than they may from the reference, from those that
// it got otherwise. expected: of its batch.
void checkAlike(const Problem& problem, const Learned& learned, const Learned& otherwise,
                const moe_reference::Gradients& expected);

}  // namespace moeccl::test
