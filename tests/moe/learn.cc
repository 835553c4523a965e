// Runs the passes of a task, and returns what the layer has learned.
#include "tests/moe/learn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/moe/on_layer.h"

namespace moeccl::test {
namespace {

using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

// The gradients of one backward pass that `how` asks for.
Gradients gradientsOf(const How& how, Gradients once) {
  for (auto Gradients::*weights :
       {&Gradients::gate, &Gradients::noise, &Gradients::w1, &Gradients::b1, &Gradients::w2,
        &Gradients::b2, &Gradients::residualW1, &Gradients::residualB1, &Gradients::residualW2,
        &Gradients::residualB2, &Gradients::gateError, &Gradients::noiseError})
    for (double& each : once.*weights) each = how.before + how.passes * how.backwards * each;
  return once;
}

void setGradients(moecclMoeLayer_t layer, Learned& learned) {
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = learned.gate.data();
  gradients.noise = learned.noise.empty() ? nullptr : learned.noise.data();
  gradients.w1 = learned.w1.data();
  gradients.b1 = learned.b1.data();
  gradients.w2 = learned.w2.data();
  gradients.b2 = learned.b2.data();
  if (!learned.residualW1.empty()) {
    gradients.residualW1 = learned.residualW1.data();
    gradients.residualB1 = learned.residualB1.data();
    gradients.residualW2 = learned.residualW2.data();
    gradients.residualB2 = learned.residualB2.data();
  }
  check(moecclMoeLayerSetGradients(layer, &gradients));
}

}  // namespace

std::vector<Learned> learn(const Task& task, const How& how) {
  SCOPED_TRACE(nameOf(how.schedule));
  const Problem& problem = task.problem;
  std::vector<Learned> all(problem.ranks());
  Job job = jobOf(problem);
  job.algorithms = how.algorithms;
  job.ucx = how.ucx;
  job.processes = how.processes;
  moecclMoeConfig_t config = task.solved.layer.config;
  config.schedule = how.schedule;
  config.training = 1;
  onLayer(job, problem, task.solved, config, [&](const LayerRank& at) {
    const int batch = at.batch;
    const moecclMoeLayer_t layer = at.layer;
    const Gradients expected =
        moe_reference::shardOf(task.solved.layer, at.shapes, task.expected[batch]);
    Learned& learned = all[at.rank];
    learned = roomFor(problem.datatype, expected, how.before);
    const Elements poison =
        encode(problem.datatype, std::vector<double>(task.outputGradients[batch].size(),
                                                     std::numeric_limits<double>::quiet_NaN()));
    moecclStream_t stream = nullptr;
    if (how.ownStream) check(moecclStreamCreate(at.comm, &stream));
    if (how.afterOthers) {
      std::vector<double> reversed = task.solved.inputs[batch];
      std::ranges::reverse(reversed);
      Elements others = encode(problem.datatype, reversed);
      check(moecclMoeForward(layer, others.data(), others.data(), stream));
      check(moecclMoeBackward(layer, others.data(), kAuxiliaryLossScale, others.data(), stream));
    }
    if (!how.onlyInput) setGradients(layer, learned);
    for (int pass = 0; pass < how.passes; ++pass) {
      // The layer keeps what it needs by itself: the caller's input may go.
      Elements tokens = at.input;
      check(moecclMoeLayerSetStep(layer, problem.step));
      check(moecclMoeForward(layer, tokens.data(), tokens.data(), stream));
      for (int i = 0; i < how.backwards; ++i) {
        const Elements gradient = encode(problem.datatype, task.outputGradients[batch]);
        learned.input = how.inPlace ? gradient : poison;
        check(moecclMoeBackward(layer, how.inPlace ? learned.input.data() : gradient.data(),
                                kAuxiliaryLossScale, learned.input.data(), stream));
      }
    }
    checkLearned(problem, learned, gradientsOf(how, expected),
                 how.tolerance > 0 ? how.tolerance : toleranceOf(problem.datatype), how.onlyInput);
    check(moecclStreamDestroy(stream));
  });
  return all;
}

}  // namespace moeccl::test
