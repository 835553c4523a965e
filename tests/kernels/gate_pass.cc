// Draws batches and runs gates on them.
#include "tests/kernels/gate_pass.h"

#include <cmath>
#include <random>
#include <tuple>
#include <utility>

namespace moeccl::gates {
namespace {

template <typename Real>
std::vector<Real> converted(const std::vector<double>& values) {
  return std::vector<Real>(values.begin(), values.end());
}

template <typename Real>
Parameters<Real> parametersOf(const Batch& batch, const Pass<Real>& run) {
  return {run.gate.data(), run.noise.data(), batch.bias.empty() ? nullptr : batch.bias.data()};
}

}  // namespace

std::vector<Config> everyConfig() {
  std::vector<Config> configs;
  const auto add = [&](Config config) {
    for (std::int64_t tokens : {0, 1, 5, 30}) {
      config.batchTokens = tokens;
      config.embedding = 7;
      config.capacityTokens = tokens == 30 ? 8 : 3;
      config.capacitySlots = 2;
      configs.push_back(config);
    }
  };
  const auto kind = [](Kind value, std::int32_t experts, std::int32_t choices) {
    Config config;
    config.kind = value;
    config.experts = experts;
    config.choices = choices;
    return config;
  };
  for (const auto& [experts, choices] :
       {std::pair{1, 1}, {2, 1}, {2, 2}, {5, 2}, {8, 1}, {8, 3}, {13, 13}}) {
    Config softmax = kind(Kind::softmax, experts, choices);
    add(softmax);
    softmax.jitter = 0.1;
    add(softmax);
    Config noisy = kind(Kind::noisy, experts, choices);
    noisy.importanceWeight = 0.5;
    noisy.loadWeight = 2;
    add(noisy);
    if (choices == 2) add(kind(Kind::gshard, experts, 2));
    add(kind(Kind::expertChoice, experts, 0));
    Config sigmoid = kind(Kind::sigmoid, experts, choices);
    sigmoid.routingScale = 2.5;
    sigmoid.sequenceTokens = experts == 5 ? 0 : 4;
    add(sigmoid);
  }
  for (const auto& [experts, groups, top, choices] :
       {std::tuple{8, 4, 2, 3}, {8, 4, 2, 4}, {9, 3, 1, 2}, {6, 6, 3, 3}, {12, 2, 2, 5}}) {
    Config sigmoid = kind(Kind::sigmoid, experts, choices);
    sigmoid.expertGroups = groups;
    sigmoid.topGroups = top;
    add(sigmoid);
  }
  return configs;
}

std::string nameOf(const Config& config) {
  const char* const names[] = {"softmax", "noisy", "gshard", "expertChoice", "sigmoid"};
  return std::string(names[static_cast<int>(config.kind)]) + ", " +
         std::to_string(config.batchTokens) + " tokens, " + std::to_string(config.experts) +
         " experts, " + std::to_string(config.choices) + " choices, jitter " +
         std::to_string(config.jitter) + ", " + std::to_string(config.topGroups) + " of " +
         std::to_string(config.expertGroups) + " groups";
}

Batch batchOf(const Config& config, unsigned seed, Values values) {
  std::mt19937 random(seed);
  const auto draw = [&](std::int64_t count, float size) {
    std::vector<double> result(count);
    for (double& value : result)
      value = values == Values::few ? static_cast<float>(static_cast<int>(random() % 3) - 1) * 0.5f
                                    : std::uniform_real_distribution<float>(-size, size)(random);
    return result;
  };
  Batch batch;
  batch.name = nameOf(config);
  batch.config = config;
  batch.gate = draw(config.embedding * config.experts, 1);
  batch.noise = draw(config.embedding * config.experts, 1);
  if (config.kind == Kind::sigmoid) batch.bias = draw(config.experts, 0.2f);
  batch.input = draw(config.batchTokens * config.embedding, 1);
  batch.draw = Draw{seed, 3, 1};
  return batch;
}

template <typename Real>
Pass<Real>::Pass(const Batch& batch, double scale, const std::vector<std::int64_t>& ends)
    : gate(converted<Real>(batch.gate)),
      noise(converted<Real>(batch.noise)),
      input(converted<Real>(batch.input)) {
  const Config& config = batch.config;
  const std::int64_t tokens = config.batchTokens, choices = width(config);
  const std::int64_t groups = (tokens + config.capacityTokens - 1) / config.capacityTokens;
  logits.assign(tokens * logitsPerToken(config), NAN);
  chosen.assign(tokens * choices, -7);
  weights.assign(tokens * choices, NAN);
  sums.resize(sumsSize(config));
  dSums.assign(sumsSize(config), NAN);
  used.assign(groups * config.experts, -7);
  slots.assign(tokens * choices, -7);
  factors.assign(tokens, NAN);
  Gate<Real> real(config);
  std::int64_t begin = 0;
  for (std::int64_t end : ends) {
    std::vector<double> part(sumsSize(config));
    real.forward(parametersOf(batch, *this),
                 {input.data() + begin * config.embedding, end - begin, begin, batch.draw},
                 {logits.data() + begin * logitsPerToken(config), chosen.data() + begin * choices,
                  weights.data() + begin * choices},
                 part.data());
    for (std::size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
    begin = end;
  }
  real.place(tokens, groups, chosen.data(), weights.data(), used.data(), slots.data(),
             factors.data(), sums.data());
  loss = real.loss(sums.data(), scale, dSums.data());
}

template <typename Real>
void Pass<Real>::backward(const Batch& batch, const std::vector<Real>& dWeights,
                          const std::vector<std::int64_t>& ends) {
  const Config& config = batch.config;
  dGate.assign(gate.size(), 0);
  dNoise.assign(noise.size(), 0);
  dInput.assign(input.size(), 0);
  Gate<Real> real(config);
  std::int64_t begin = 0;
  for (std::int64_t end : ends) {
    real.backward(parametersOf(batch, *this),
                  {input.data() + begin * config.embedding, end - begin, begin, batch.draw},
                  logits.data() + begin * logitsPerToken(config),
                  chosen.data() + begin * width(config),
                  {slots.data() + begin * width(config), weights.data() + begin * width(config),
                   factors.data() + begin},
                  dWeights.data() + begin * width(config), dSums.data(),
                  {dGate.data(), dNoise.data(), dInput.data() + begin * config.embedding});
    begin = end;
  }
}

template struct Pass<float>;
template struct Pass<double>;

}  // namespace moeccl::gates
