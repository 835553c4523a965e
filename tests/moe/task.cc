#include "tests/moe/task.h"

#include <random>
#include <stdexcept>
#include <string>

namespace moeccl::test {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

void addOverBatches(std::vector<Gradients>& all) {
  for (auto Gradients::*weights :
       {&Gradients::w1, &Gradients::b1, &Gradients::w2, &Gradients::b2}) {
    std::vector<double> sum((all[0].*weights).size());
    for (const Gradients& each : all)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (each.*weights)[i];
    for (Gradients& each : all) each.*weights = sum;
  }
}

Task taskOf(Problem problem) {
  problem.training = true;
  Task task{problem, solve(problem), {}, {}};
  std::mt19937 random(problem.seed + 1);
  std::uniform_real_distribution<float> value(-1, 1);
  int batch = 0;
  for (const std::vector<double>& input : task.solved.inputs) {
    std::vector<double>& gradient = task.outputGradients.emplace_back(input.size());
    for (double& each : gradient) each = value(random);
    task.expected.push_back(moe_reference::backward(task.solved.layer, input.data(),
                                                    gradient.data(), kAuxiliaryLossScale,
                                                    chanceOf(problem, batch++)));
  }
  addOverBatches(task.expected);
  return task;
}

Learned roomFor(moecclDataType_t datatype, const Gradients& shard, double before) {
  const auto room = [&](const std::vector<double>& like) {
    return encode(datatype, std::vector<double>(like.size(), before));
  };
  return {room(shard.input),      room(shard.gate),       room(shard.noise),
          room(shard.w1),         room(shard.b1),         room(shard.w2),
          room(shard.b2),         room(shard.residualW1), room(shard.residualB1),
          room(shard.residualW2), room(shard.residualB2)};
}

void checkLearned(const Problem& problem, const Learned& learned, const Gradients& expected,
                  double tolerance, bool onlyInput) {
  std::string faults;
  const auto compare = [&](const char* name, const Elements& elements,
                           const std::vector<double>& numbers, double factor = 1) {
    const std::vector<double> actual = decode(problem.datatype, elements);
    const bool same = actual.size() == numbers.size();
    const double error = same ? moe_reference::largestError(actual, numbers) : -1;
    // An error that is no number is one too.
    if (!same || !(error <= factor * tolerance))
      faults += std::string("; ") + name + ", off by " + std::to_string(error);
  };
  compare("input", learned.input, expected.input);
  if (!onlyInput) {
    // Where one expert has nearly all probability, these are small differences of large numbers,
    // here as in the reference.
    const double factor = tolerance < 1e-9 ? 10 : 1;
    compare("gate", learned.gate, expected.gate, factor);
    compare("noise", learned.noise, expected.noise, factor);
    compare("w1", learned.w1, expected.w1);
    compare("b1", learned.b1, expected.b1);
    compare("w2", learned.w2, expected.w2);
    compare("b2", learned.b2, expected.b2);
    compare("residual w1", learned.residualW1, expected.residualW1);
    compare("residual b1", learned.residualB1, expected.residualB1);
    compare("residual w2", learned.residualW2, expected.residualW2);
    compare("residual b2", learned.residualB2, expected.residualB2);
  }
  if (!faults.empty())
    throw std::runtime_error("gradients are not what is expected" + faults + "; " + problem.text());
}

void checkAlike(const Problem& problem, const Learned& learned, const Learned& otherwise) {
  Gradients expected;
  const auto decodeTo = [&](std::vector<double>& numbers, const Elements& elements) {
    numbers = decode(problem.datatype, elements);
  };
  decodeTo(expected.input, otherwise.input);
  decodeTo(expected.gate, otherwise.gate);
  decodeTo(expected.noise, otherwise.noise);
  decodeTo(expected.w1, otherwise.w1);
  decodeTo(expected.b1, otherwise.b1);
  decodeTo(expected.w2, otherwise.w2);
  decodeTo(expected.b2, otherwise.b2);
  decodeTo(expected.residualW1, otherwise.residualW1);
  decodeTo(expected.residualB1, otherwise.residualB1);
  decodeTo(expected.residualW2, otherwise.residualW2);
  decodeTo(expected.residualB2, otherwise.residualB2);
  checkLearned(problem, learned, expected, toleranceOf(problem.datatype));
}

}  // namespace moeccl::test
