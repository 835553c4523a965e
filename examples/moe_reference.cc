#include "examples/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moe_reference {
namespace {

using Vector = std::vector<double>;

std::int64_t roundUp(std::int64_t value, std::int64_t multiple) {
  while (value % multiple != 0) ++value;
  return value;
}

Vector logits(const Layer& layer, const float* token) {
  const std::int64_t experts = layer.config.experts;
  Vector result(experts, 0.0);
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (std::int64_t m = 0; m < layer.config.embedding; ++m)
      result[expert] += static_cast<double>(token[m]) * layer.gate[m * experts + expert];
  return result;
}

Vector softmax(const Vector& logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  Vector result;
  for (double logit : logits) result.push_back(std::exp(logit - highest));
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& probability : result) probability /= sum;
  return result;
}

// All experts, best first.
std::vector<std::int64_t> ranking(const Vector& logits) {
  std::vector<std::int64_t> experts(logits.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(),
                   [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
  return experts;
}

double activation(moecclMoeActivation_t which, double x) {
  if (which == moecclMoeRelu) return x > 0 ? x : 0;
  return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
}

Vector expertOutput(const Layer& layer, std::int64_t expert, const float* token) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const float* const w1 = layer.w1.data() + expert * embedding * hidden;
  const float* const w2 = layer.w2.data() + expert * hidden * embedding;
  Vector inner(hidden, 0.0), result(embedding, 0.0);
  for (std::int64_t m = 0; m < embedding; ++m)
    for (std::int64_t h = 0; h < hidden; ++h)
      inner[h] += static_cast<double>(token[m]) * w1[m * hidden + h];
  for (std::int64_t h = 0; h < hidden; ++h) {
    if (!layer.b1.empty()) inner[h] += layer.b1[expert * hidden + h];
    inner[h] = activation(layer.config.activation, inner[h]);
  }
  for (std::int64_t h = 0; h < hidden; ++h)
    for (std::int64_t m = 0; m < embedding; ++m) result[m] += inner[h] * w2[h * embedding + m];
  if (!layer.b2.empty())
    for (std::int64_t m = 0; m < embedding; ++m) result[m] += layer.b2[expert * embedding + m];
  return result;
}

}  // namespace

Result forward(const Layer& layer, const float* input) {
  const moecclMoeConfig_t& config = layer.config;
  const std::int64_t tokens = config.tokens, experts = config.experts, choices = config.topK;
  const std::int64_t embedding = config.embedding;
  const std::int64_t groups = config.capacityGroups == 0 ? layer.nMp : config.capacityGroups;
  const std::int64_t unit = std::lcm(groups, static_cast<std::int64_t>(layer.nMp));
  const std::int64_t padded = roundUp(tokens, unit);

  Result result;
  const double wanted = static_cast<double>(choices) * config.capacityFactor *
                        static_cast<double>(tokens) / static_cast<double>(experts);
  const double nearest = std::round(wanted);
  const double places = std::abs(wanted - nearest) <= 1e-12 * wanted ? nearest : std::ceil(wanted);
  result.capacity = places >= static_cast<double>(padded)
                        ? padded
                        : roundUp(static_cast<std::int64_t>(places), unit);
  result.output.assign(tokens * embedding, 0.0);
  result.assigned.assign(experts, 0);
  result.kept.assign(experts, 0);

  Vector probabilitySum(experts, 0.0), firstChoices(experts, 0.0);
  std::vector<Vector> probabilities;
  std::vector<std::vector<std::int64_t>> chosen;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const Vector scores = logits(layer, input + token * embedding);
    probabilities.push_back(softmax(scores));
    chosen.push_back(ranking(scores));
    chosen.back().resize(choices);
    for (std::int64_t expert = 0; expert < experts; ++expert)
      probabilitySum[expert] += probabilities.back()[expert];
    firstChoices[chosen.back()[0]] += 1;
    for (std::int64_t expert : chosen.back()) result.assigned[expert] += 1;
  }
  for (std::int64_t expert = 0; expert < experts && tokens > 0; ++expert)
    result.auxiliaryLoss += static_cast<double>(experts) * (firstChoices[expert] / tokens) *
                            (probabilitySum[expert] / tokens);

  // Places, group by group: all first choices, then all second ones.
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> taken(experts, 0);
    for (std::int64_t choice = 0; choice < choices; ++choice)
      for (std::int64_t token = 0; token < tokens; ++token) {
        if (token * groups / padded != group) continue;
        const std::int64_t expert = chosen[token][choice];
        if (taken[expert] == result.capacity / groups) {
          result.placeless.push_back(token * choices + choice);
          continue;
        }
        ++taken[expert];
        ++result.kept[expert];
        double weight = probabilities[token][expert];
        if (choices > 1) {
          double sum = 0;
          for (std::int64_t other : chosen[token]) sum += probabilities[token][other];
          weight /= sum;
        }
        const Vector output = expertOutput(layer, expert, input + token * embedding);
        for (std::int64_t m = 0; m < embedding; ++m)
          result.output[token * embedding + m] += weight * output[m];
      }
  }
  std::sort(result.placeless.begin(), result.placeless.end());
  return result;
}

Shard shardOf(const Layer& layer, const moecclMoeShapes_t& shapes) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  Shard shard;
  for (std::int64_t e = shapes.firstExpert; e < shapes.firstExpert + shapes.localExperts; ++e) {
    const auto append = [](std::vector<float>& to, const std::vector<float>& from,
                           std::int64_t first, std::int64_t count) {
      if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + count);
    };
    for (std::int64_t m = 0; m < embedding; ++m)
      append(shard.w1, layer.w1, (e * embedding + m) * hidden + shapes.firstHidden,
             shapes.localHidden);
    append(shard.b1, layer.b1, e * hidden + shapes.firstHidden, shapes.localHidden);
    append(shard.w2, layer.w2, (e * hidden + shapes.firstHidden) * embedding,
           shapes.localHidden * embedding);
    append(shard.b2, layer.b2, e * embedding, embedding);
  }
  shard.weights.gate = layer.gate.data();
  shard.weights.w1 = shard.w1.data();
  shard.weights.b1 = shard.b1.empty() ? nullptr : shard.b1.data();
  shard.weights.w2 = shard.w2.data();
  shard.weights.b2 = shard.b2.empty() ? nullptr : shard.b2.data();
  return shard;
}

double largestError(const float* actual, const double* expected, std::int64_t count) {
  double largest = 0, scale = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
    scale = std::max(scale, std::abs(expected[i]));
  }
  return scale == 0 ? largest : largest / scale;
}

}  // namespace moe_reference
