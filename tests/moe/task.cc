// Computes by the reference what a layer must learn.
#include "tests/moe/task.h"

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "src/base/text.h"

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
  // rounding: how far each of the reference's numbers may be off, in units of the precision of
  // double, with which gates compute whatever the datatype. The library's may be off as far.
  const auto compare = [&](const char* name, const Elements& elements,
                           const std::vector<double>& numbers,
                           const std::vector<double>& rounding = {}) {
    std::vector<double> actual = decode(problem.datatype, elements);
    if (actual.size() != numbers.size()) {
      faults += std::string("; ") + name + ", of another size";
      return;
    }
    for (std::size_t i = 0; i < rounding.size(); ++i)
      if (std::abs(actual[i] - numbers[i]) <=
          2 * rounding[i] * std::numeric_limits<double>::epsilon())
        actual[i] = numbers[i];
    const double error = moe_reference::largestError(actual, numbers);
    // An error that is no number is one too.
    if (!(error <= tolerance)) faults += std::string("; ") + name + ", off by " + numberText(error);
  };
  compare("input", learned.input, expected.input);
  if (!onlyInput) {
    // Where one expert has nearly all probability, these are small differences of large numbers.
    compare("gate", learned.gate, expected.gate, expected.gateError);
    compare("noise", learned.noise, expected.noise, expected.noiseError);
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

void checkAlike(const Problem& problem, const Learned& learned, const Learned& otherwise,
                const Gradients& expected) {
  Gradients numbers;
  const auto decodeTo = [&](std::vector<double>& decoded, const Elements& elements) {
    decoded = decode(problem.datatype, elements);
  };
  decodeTo(numbers.input, otherwise.input);
  decodeTo(numbers.gate, otherwise.gate);
  decodeTo(numbers.noise, otherwise.noise);
  decodeTo(numbers.w1, otherwise.w1);
  decodeTo(numbers.b1, otherwise.b1);
  decodeTo(numbers.w2, otherwise.w2);
  decodeTo(numbers.b2, otherwise.b2);
  decodeTo(numbers.residualW1, otherwise.residualW1);
  decodeTo(numbers.residualB1, otherwise.residualB1);
  decodeTo(numbers.residualW2, otherwise.residualW2);
  decodeTo(numbers.residualB2, otherwise.residualB2);
  numbers.gateError = expected.gateError;
  numbers.noiseError = expected.noiseError;
  checkLearned(problem, learned, numbers, toleranceOf(problem.datatype));
}

}  // namespace moeccl::test
