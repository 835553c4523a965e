#include "examples/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
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

double slope(moecclMoeActivation_t which, double x) {
  if (which == moecclMoeRelu) return x > 0 ? 1 : 0;
  const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  return (1 + std::erf(x / std::sqrt(2.0))) / 2 + x * density;
}

// What an expert's hidden units get, before the activation.
Vector hiddenInput(const Layer& layer, std::int64_t expert, const float* token) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const float* const w1 = layer.w1.data() + expert * embedding * hidden;
  Vector inner(hidden, 0.0);
  for (std::int64_t m = 0; m < embedding; ++m)
    for (std::int64_t h = 0; h < hidden; ++h)
      inner[h] += static_cast<double>(token[m]) * w1[m * hidden + h];
  for (std::int64_t h = 0; h < hidden && !layer.b1.empty(); ++h)
    inner[h] += layer.b1[expert * hidden + h];
  return inner;
}

Vector expertOutput(const Layer& layer, std::int64_t expert, const float* token) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const float* const w2 = layer.w2.data() + expert * hidden * embedding;
  const Vector inner = hiddenInput(layer, expert, token);
  Vector result(embedding, 0.0);
  for (std::int64_t h = 0; h < hidden; ++h)
    for (std::int64_t m = 0; m < embedding; ++m)
      result[m] += activation(layer.config.activation, inner[h]) * w2[h * embedding + m];
  for (std::int64_t m = 0; m < embedding && !layer.b2.empty(); ++m)
    result[m] += layer.b2[expert * embedding + m];
  return result;
}

// What the gate and the capacity make of a batch.
struct Routing {
  std::vector<Vector> probabilities;              // [tokens][E]
  std::vector<std::vector<std::int64_t>> chosen;  // [tokens][k]
  Vector firstChoices;                            // [E]
  std::vector<std::int64_t> placed;               // choices with a place: token * k + choice
  Result result;                                  // all but the output
};

Routing route(const Layer& layer, const float* input) {
  const moecclMoeConfig_t& config = layer.config;
  const std::int64_t tokens = config.tokens, experts = config.experts, choices = config.topK;
  const std::int64_t groups = config.capacityGroups == 0 ? layer.nMp : config.capacityGroups;
  const std::int64_t unit = std::lcm(groups, static_cast<std::int64_t>(layer.nMp));
  const std::int64_t padded = roundUp(tokens, unit);

  Routing routing;
  Result& result = routing.result;
  const double wanted = static_cast<double>(choices) * config.capacityFactor *
                        static_cast<double>(tokens) / static_cast<double>(experts);
  const double nearest = std::round(wanted);
  const double places = std::abs(wanted - nearest) <= 1e-12 * wanted ? nearest : std::ceil(wanted);
  result.capacity = places >= static_cast<double>(padded)
                        ? padded
                        : roundUp(static_cast<std::int64_t>(places), unit);
  result.assigned.assign(experts, 0);
  result.kept.assign(experts, 0);

  Vector probabilitySum(experts, 0.0);
  routing.firstChoices.assign(experts, 0.0);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const Vector scores = logits(layer, input + token * config.embedding);
    routing.probabilities.push_back(softmax(scores));
    std::vector<std::int64_t> chosen = ranking(scores);
    chosen.resize(choices);
    for (std::int64_t expert = 0; expert < experts; ++expert)
      probabilitySum[expert] += routing.probabilities.back()[expert];
    routing.firstChoices[chosen[0]] += 1;
    for (std::int64_t expert : chosen) result.assigned[expert] += 1;
    routing.chosen.push_back(chosen);
  }
  for (std::int64_t expert = 0; expert < experts && tokens > 0; ++expert)
    result.auxiliaryLoss += static_cast<double>(experts) * (routing.firstChoices[expert] / tokens) *
                            (probabilitySum[expert] / tokens);

  // Places, group by group: all first choices, then all second ones.
  for (std::int64_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> taken(experts, 0);
    for (std::int64_t choice = 0; choice < choices; ++choice)
      for (std::int64_t token = 0; token < tokens; ++token) {
        if (token * groups / padded != group) continue;
        const std::int64_t expert = routing.chosen[token][choice];
        const bool full = taken[expert] == result.capacity / groups;
        (full ? result.placeless : routing.placed).push_back(token * choices + choice);
        taken[expert] += full ? 0 : 1;
        result.kept[expert] += full ? 0 : 1;
      }
  }
  std::sort(result.placeless.begin(), result.placeless.end());
  return routing;
}

// What the weights of a token's choices, k of them, are divided by.
double weightSum(const Routing& routing, std::int64_t token) {
  if (routing.chosen[token].size() == 1) return 1;
  double sum = 0;
  for (std::int64_t expert : routing.chosen[token]) sum += routing.probabilities[token][expert];
  return sum;
}

// Adds the gradients of an expert's weights, given those of its output for one token, and returns those
// of the token.
Vector expertBackward(const Layer& layer, std::int64_t expert, const float* token,
                      const Vector& outputGradient, Gradients& gradients) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const std::int64_t matrix = expert * embedding * hidden;
  const Vector inner = hiddenInput(layer, expert, token);
  Vector tokenGradient(embedding, 0.0);
  for (std::int64_t m = 0; m < embedding; ++m)
    gradients.b2[expert * embedding + m] += outputGradient[m];
  for (std::int64_t h = 0; h < hidden; ++h) {
    const double active = activation(layer.config.activation, inner[h]);
    double gradient = 0;
    for (std::int64_t m = 0; m < embedding; ++m) {
      gradients.w2[matrix + h * embedding + m] += active * outputGradient[m];
      gradient += layer.w2[matrix + h * embedding + m] * outputGradient[m];
    }
    gradient *= slope(layer.config.activation, inner[h]);
    gradients.b1[expert * hidden + h] += gradient;
    for (std::int64_t m = 0; m < embedding; ++m) {
      gradients.w1[matrix + m * hidden + h] += token[m] * gradient;
      tokenGradient[m] += layer.w1[matrix + m * hidden + h] * gradient;
    }
  }
  return tokenGradient;
}

// Adds the gradients of the gate, and of the token by it, given those of the token's probabilities.
void gateBackward(const Layer& layer, const float* token, const Vector& probabilities,
                  const Vector& probabilityGradients, Gradients& gradients, double* tokenGradient) {
  const std::int64_t experts = layer.config.experts;
  const double mean = std::inner_product(probabilities.begin(), probabilities.end(),
                                         probabilityGradients.begin(), 0.0);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const double logit = probabilities[expert] * (probabilityGradients[expert] - mean);
    for (std::int64_t m = 0; m < layer.config.embedding; ++m) {
      gradients.gate[m * experts + expert] += token[m] * logit;
      tokenGradient[m] += layer.gate[m * experts + expert] * logit;
    }
  }
}

}  // namespace

Result forward(const Layer& layer, const float* input) {
  const std::int64_t embedding = layer.config.embedding, choices = layer.config.topK;
  Routing routing = route(layer, input);
  routing.result.output.assign(layer.config.tokens * embedding, 0.0);
  for (std::int64_t at : routing.placed) {
    const std::int64_t token = at / choices, expert = routing.chosen[token][at % choices];
    const double weight = routing.probabilities[token][expert] / weightSum(routing, token);
    const Vector output = expertOutput(layer, expert, input + token * embedding);
    for (std::int64_t m = 0; m < embedding; ++m)
      routing.result.output[token * embedding + m] += weight * output[m];
  }
  return routing.result;
}

Gradients backward(const Layer& layer, const float* input, const float* outputGradient,
                   double auxiliaryLossScale) {
  const moecclMoeConfig_t& config = layer.config;
  const std::int64_t embedding = config.embedding, choices = config.topK;
  const Routing routing = route(layer, input);
  Gradients gradients;
  gradients.input.assign(config.tokens * embedding, 0.0);
  gradients.gate.assign(layer.gate.size(), 0.0);
  gradients.w1.assign(layer.w1.size(), 0.0);
  gradients.b1.assign(config.experts * config.hidden, 0.0);
  gradients.w2.assign(layer.w2.size(), 0.0);
  gradients.b2.assign(config.experts * embedding, 0.0);

  // By the probabilities, first as if each were a weight by itself.
  std::vector<Vector> ofProbabilities(config.tokens, Vector(config.experts, 0.0));
  for (std::int64_t at : routing.placed) {
    const std::int64_t token = at / choices, expert = routing.chosen[token][at % choices];
    const double weight = routing.probabilities[token][expert] / weightSum(routing, token);
    const Vector output = expertOutput(layer, expert, input + token * embedding);
    Vector weighted(embedding);
    for (std::int64_t m = 0; m < embedding; ++m) {
      ofProbabilities[token][expert] += output[m] * outputGradient[token * embedding + m];
      weighted[m] = weight * outputGradient[token * embedding + m];
    }
    const Vector ofToken =
        expertBackward(layer, expert, input + token * embedding, weighted, gradients);
    for (std::int64_t m = 0; m < embedding; ++m)
      gradients.input[token * embedding + m] += ofToken[m];
  }
  for (std::int64_t token = 0; token < config.tokens; ++token) {
    Vector& mine = ofProbabilities[token];
    // A weight p / s, where s is the sum of the chosen p.
    const double sum = weightSum(routing, token);
    double mean = 0;
    for (std::int64_t expert : routing.chosen[token])
      mean += mine[expert] * routing.probabilities[token][expert] / sum;
    for (std::int64_t expert : routing.chosen[token])
      mine[expert] = (mine[expert] - (choices == 1 ? 0 : mean)) / sum;
    for (std::int64_t expert = 0; expert < config.experts; ++expert)
      mine[expert] += auxiliaryLossScale * static_cast<double>(config.experts) *
                      routing.firstChoices[expert] / config.tokens / config.tokens;
    gateBackward(layer, input + token * embedding, routing.probabilities[token], mine, gradients,
                 gradients.input.data() + token * embedding);
  }
  return gradients;
}

namespace {

// The part of [E][...] matrices that belongs to `shapes`.
template <typename Whole, typename Part>
void cutShard(const Layer& layer, const moecclMoeShapes_t& shapes, const Whole& whole, Part& part) {
  const std::int64_t embedding = layer.config.embedding, hidden = layer.config.hidden;
  const auto append = [](auto& to, const auto& from, std::int64_t first, std::int64_t count) {
    if (!from.empty()) to.insert(to.end(), from.begin() + first, from.begin() + first + count);
  };
  for (std::int64_t e = shapes.firstExpert; e < shapes.firstExpert + shapes.localExperts; ++e) {
    for (std::int64_t m = 0; m < embedding; ++m)
      append(part.w1, whole.w1, (e * embedding + m) * hidden + shapes.firstHidden,
             shapes.localHidden);
    append(part.b1, whole.b1, e * hidden + shapes.firstHidden, shapes.localHidden);
    append(part.w2, whole.w2, (e * hidden + shapes.firstHidden) * embedding,
           shapes.localHidden * embedding);
    append(part.b2, whole.b2, e * embedding, embedding);
  }
}

}  // namespace

Shard shardOf(const Layer& layer, const moecclMoeShapes_t& shapes) {
  Shard shard;
  cutShard(layer, shapes, layer, shard);
  shard.weights.gate = layer.gate.data();
  shard.weights.w1 = shard.w1.data();
  shard.weights.b1 = shard.b1.empty() ? nullptr : shard.b1.data();
  shard.weights.w2 = shard.w2.data();
  shard.weights.b2 = shard.b2.empty() ? nullptr : shard.b2.data();
  return shard;
}

Gradients shardOf(const Layer& layer, const moecclMoeShapes_t& shapes, const Gradients& whole) {
  Gradients shard;
  cutShard(layer, shapes, whole, shard);
  shard.input = whole.input;
  shard.gate = whole.gate;
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
