#include "tests/kernels/gates_plain.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace moeccl::gates {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

// From the largest to the smallest, equal ones in their order.
std::vector<std::int32_t> ranking(const Row& values) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return values[a] > values[b]; });
  return order;
}

Row plainSoftmax(Row values) {
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value);
  for (double& value : values) value /= sum;
  return values;
}

double mean(const Rows& rows, std::size_t column) {
  double sum = 0;
  for (const Row& row : rows) sum += row[column];
  return sum / static_cast<double>(rows.size());
}

// In chains of 32.
template <typename Real>
Rows products(const Batch& batch, const std::vector<double>& matrix) {
  const std::int64_t embedding = batch.config.embedding, experts = batch.config.experts;
  Rows rows;
  for (std::int64_t t = 0; t < batch.config.batchTokens; ++t) {
    Row row(experts);
    for (std::int64_t e = 0; e < experts; ++e) {
      Real chain = 0;
      for (std::int64_t m = 0; m < embedding; ++m) {
        double x = batch.input[t * embedding + m];
        if (batch.config.jitter > 0 && batch.draw) {
          const double u = Random(*batch.draw).fourUniform(t, m / 4)[m % 4];
          x *= 1 + batch.config.jitter * (2 * u - 1);
        }
        const auto weight = static_cast<Real>(matrix[m * experts + e]);
        chain = std::fma(static_cast<Real>(x), weight, chain);
        if (m % 32 == 31) row[e] += std::exchange(chain, Real{0});
      }
      row[e] += chain;
    }
    rows.push_back(row);
  }
  return rows;
}

// Switch's and, with another factor, GShard's: factor * sum of f_e P_e.
double balanceLoss(const PlainResult& result, const Rows& probabilities, double factor) {
  const auto tokens = static_cast<double>(probabilities.size());
  double sum = 0;
  for (std::size_t e = 0; e < result.assigned.size(); ++e) {
    double firsts = 0;
    for (const auto& choices : result.tokens) firsts += choices[0].expert == static_cast<int>(e);
    sum += firsts / tokens * mean(probabilities, e);
  }
  return factor * sum;
}

void softmaxGate(const Batch& batch, const Rows& logits, PlainResult& result) {
  Rows probabilities;
  for (const Row& row : logits) {
    const Row p = plainSoftmax(row);
    const auto order = ranking(row);
    double sum = 0;
    for (int c = 0; c < batch.config.choices; ++c) sum += p[order[c]];
    std::vector<Choice> choices;
    for (int c = 0; c < batch.config.choices; ++c)
      choices.push_back({order[c], p[order[c]] / (batch.config.choices == 1 ? 1 : sum)});
    result.tokens.push_back(choices);
    probabilities.push_back(p);
  }
  result.loss = balanceLoss(result, probabilities, batch.config.experts);
}

void gshardGate(const Batch& batch, const Rows& logits, PlainResult& result) {
  Rows probabilities;
  for (std::size_t t = 0; t < logits.size(); ++t) {
    const Row p = plainSoftmax(logits[t]);
    const auto order = ranking(logits[t]);
    const double g1 = p[order[0]], g2 = p[order[1]];
    std::vector<Choice> choices = {{order[0], g1 / (g1 + g2)}};
    const bool taken =
        !batch.draw || 2 * g2 / (g1 + g2) > Random(*batch.draw).uniform(std::int64_t(t), 0);
    if (taken) choices.push_back({order[1], g2 / (g1 + g2)});
    result.tokens.push_back(choices);
    probabilities.push_back(p);
  }
  result.loss = balanceLoss(result, probabilities, 1.0 / batch.config.experts);
}

double variation(const Row& values) {
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double variance = 0;
  for (double v : values) variance += (v - mean) * (v - mean) / static_cast<double>(values.size());
  return std::sqrt(variance) / mean;
}

void noisyGate(const Batch& batch, const Rows& logits, const Rows& raw, PlainResult& result) {
  const std::int32_t experts = batch.config.experts, k = batch.config.choices;
  Row importance(experts), load(experts);
  for (std::size_t t = 0; t < logits.size(); ++t) {
    Row noisy(experts), spread(experts);
    for (std::int32_t e = 0; e < experts; ++e) {
      spread[e] = std::log(1 + std::exp(raw[t][e]));
      noisy[e] = logits[t][e];
      if (batch.draw) noisy[e] += Random(*batch.draw).normal(std::int64_t(t), e) * spread[e];
    }
    const auto order = ranking(noisy);
    Row kept;
    for (std::int32_t c = 0; c < k; ++c) kept.push_back(noisy[order[c]]);
    kept = plainSoftmax(kept);
    std::vector<Choice> choices;
    for (std::int32_t c = 0; c < k; ++c) {
      choices.push_back({order[c], kept[c]});
      importance[order[c]] += kept[c];
    }
    result.tokens.push_back(choices);
    for (std::int32_t e = 0; e < experts; ++e) {
      Row others = noisy;
      others.erase(others.begin() + e);
      std::sort(others.rbegin(), others.rend());
      if (k > static_cast<std::int32_t>(others.size()))
        load[e] += 1;
      else
        load[e] += (1 + std::erf((logits[t][e] - others[k - 1]) / spread[e] / std::sqrt(2.0))) / 2;
    }
  }
  result.loss = batch.config.importanceWeight * std::pow(variation(importance), 2) +
                batch.config.loadWeight * std::pow(variation(load), 2);
}

void expertChoiceGate(const Batch& batch, const Rows& logits, PlainResult& result) {
  const Config& config = batch.config;
  result.tokens.resize(logits.size());
  Rows scores;
  for (const Row& row : logits) scores.push_back(plainSoftmax(row));
  for (std::int32_t e = 0; e < config.experts; ++e)
    for (std::int64_t begin = 0; begin < config.batchTokens; begin += config.capacityTokens) {
      const std::int64_t end = std::min(config.batchTokens, begin + config.capacityTokens);
      Row column;
      for (std::int64_t t = begin; t < end; ++t) column.push_back(scores[t][e]);
      const auto order = ranking(column);
      const std::int64_t taken = std::min(config.capacitySlots, end - begin);
      for (std::int64_t i = 0; i < taken; ++i)
        result.tokens[begin + order[i]].push_back({e, column[order[i]]});
    }
}

void sigmoidGate(const Batch& batch, const Rows& logits, PlainResult& result) {
  const Config& config = batch.config;
  const std::int32_t size = config.experts / config.expertGroups;
  Rows shares;
  for (const Row& row : logits) {
    Row s(config.experts), keys(config.experts), groupScores;
    for (std::int32_t e = 0; e < config.experts; ++e) {
      s[e] = 1 / (1 + std::exp(-row[e]));
      keys[e] = s[e] + (batch.bias.empty() ? 0 : batch.bias[e]);
    }
    for (std::int32_t g = 0; g < config.expertGroups; ++g) {
      Row group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      groupScores.push_back(group[0] + (size > 1 ? group[1] : 0));
    }
    const auto groups = ranking(groupScores);
    std::vector<Choice> choices;
    double sum = 0;
    for (std::int32_t e : ranking(keys)) {
      const auto end = groups.begin() + config.topGroups;
      if (std::find(groups.begin(), end, e / size) == end) continue;
      if (static_cast<std::int32_t>(choices.size()) == config.choices) break;
      choices.push_back({e, config.routingScale * s[e]});
      sum += s[e];
    }
    for (Choice& choice : choices) choice.weight /= sum;
    result.tokens.push_back(choices);
    const double total = std::accumulate(s.begin(), s.end(), 0.0);
    for (double& value : s) value /= total;
    shares.push_back(s);
  }
  const std::int64_t length =
      config.sequenceTokens == 0 ? config.batchTokens : config.sequenceTokens;
  int sequences = 0;
  for (std::int64_t begin = 0; begin < config.batchTokens; begin += length, ++sequences) {
    const std::int64_t end = std::min(config.batchTokens, begin + length);
    const auto tokens = static_cast<double>(end - begin);
    for (std::int32_t e = 0; e < config.experts; ++e) {
      double count = 0;
      for (std::int64_t t = begin; t < end; ++t)
        for (const Choice& choice : result.tokens[t]) count += choice.expert == e;
      result.loss += config.experts / (config.choices * tokens) * count *
                     mean(Rows(shares.begin() + begin, shares.begin() + end), e);
    }
  }
  result.loss /= sequences;
}

template <typename Real>
std::vector<Real> converted(const std::vector<double>& values) {
  return std::vector<Real>(values.begin(), values.end());
}

template <typename Real>
Parameters<Real> parametersOf(const Batch& batch, const Pass<Real>& run) {
  return {run.gate.data(), run.noise.data(), batch.bias.empty() ? nullptr : batch.bias.data()};
}

}  // namespace

template <typename Real>
PlainResult plainGate(const Batch& batch) {
  PlainResult result;
  result.assigned.resize(batch.config.experts);
  if (batch.config.batchTokens == 0) return result;
  const Rows logits = products<Real>(batch, batch.gate);
  switch (batch.config.kind) {
    case Kind::softmax:
      softmaxGate(batch, logits, result);
      break;
    case Kind::gshard:
      gshardGate(batch, logits, result);
      break;
    case Kind::noisy:
      noisyGate(batch, logits, products<Real>(batch, batch.noise), result);
      break;
    case Kind::expertChoice:
      expertChoiceGate(batch, logits, result);
      break;
    case Kind::sigmoid:
      sigmoidGate(batch, logits, result);
      break;
  }
  for (const auto& choices : result.tokens)
    for (const Choice& choice : choices) result.assigned[choice.expert] += 1;
  return result;
}

template PlainResult plainGate<float>(const Batch& batch);
template PlainResult plainGate<double>(const Batch& batch);

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
