// Each gate by its definition, one token after the other.
#include "examples/moe_reference_gates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moe_reference {
namespace {

template <typename Number>
std::vector<std::int64_t> ranking(const std::vector<Number>& values) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return valueOf(values[a]) > valueOf(values[b]);
  });
  return order;
}

template <typename Number>
std::vector<Number> softmax(std::vector<Number> values) {
  double highest = valueOf(values[0]);
  for (const Number& value : values) highest = std::max(highest, valueOf(value));
  Number sum = 0;
  for (Number& value : values) {
    using std::exp;
    sum += value = exp(value - highest);
  }
  for (Number& value : values) value /= sum;
  return values;
}

template <typename Number>
Number softplus(Number x) {
  using std::exp, std::log1p;
  return log1p(exp(x));
}

template <typename Number>
Number normalProbability(Number x) {
  using std::erfc;
  return erfc(-x / std::sqrt(2.0)) / 2.0;
}

template <typename Number>
void softmaxGate(const moecclMoeConfig_t& config, const std::vector<Number>& logits,
                 Decision<Number>& it) {
  it.second = softmax(logits);
  it.experts = ranking(logits);
  it.experts.resize(config.topK);
  it.first[it.experts[0]] += 1.0;
  Number sum = 0;
  for (std::int64_t expert : it.experts) sum += it.second[expert];
  for (std::int64_t expert : it.experts)
    it.weights.push_back(config.topK == 1 ? it.second[expert] : it.second[expert] / sum);
}

template <typename Number>
void noisyGate(const moecclMoeConfig_t& config, std::int64_t token,
               const std::vector<Number>& logits, const std::vector<Number>& noise,
               const Chance& chance, Decision<Number>& it) {
  std::vector<Number> noisy;
  for (std::int64_t e = 0; e < config.experts; ++e) {
    const double normal = chance.normal ? chance.normal(token, e) : 0;
    noisy.push_back(logits[e] + normal * softplus(noise[e]));
  }
  it.experts = ranking(noisy);
  it.experts.resize(config.topK);
  for (std::int64_t expert : it.experts) it.weights.push_back(noisy[expert]);
  it.weights = softmax(it.weights);
  for (std::int64_t c = 0; c < config.topK; ++c) it.first[it.experts[c]] += it.weights[c];
  for (std::int64_t e = 0; e < config.experts; ++e) {
    std::vector<Number> others = noisy;
    others.erase(others.begin() + e);
    if (config.topK > static_cast<std::int64_t>(others.size())) {
      it.second[e] = 1;
      continue;
    }
    const Number rival = others[ranking(others)[config.topK - 1]];
    it.second[e] = normalProbability((logits[e] - rival) / softplus(noise[e]));
  }
}

// Experts of groups that do not serve the token come last.
std::vector<std::int64_t> groupedRanking(const moecclMoeConfig_t& config,
                                         const std::vector<double>& keys) {
  const std::int64_t groups = config.sigmoid.expertGroups == 0 ? 1 : config.sigmoid.expertGroups;
  const std::int64_t top = config.sigmoid.topGroups == 0 ? groups : config.sigmoid.topGroups;
  const std::int64_t size = config.experts / groups;
  std::vector<double> scores;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::vector<double> group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    scores.push_back(size == 1 ? group[0] : group[0] + group[1]);
  }
  std::vector<std::int64_t> serving = ranking(scores);
  serving.resize(top);
  std::vector<std::int64_t> order = ranking(keys);
  std::stable_partition(order.begin(), order.end(), [&](std::int64_t expert) {
    return std::find(serving.begin(), serving.end(), expert / size) != serving.end();
  });
  return order;
}

template <typename Number>
void sigmoidGate(const moecclMoeConfig_t& config, const std::vector<Number>& logits,
                 const std::vector<double>& bias, Decision<Number>& it) {
  std::vector<Number> affinities;
  std::vector<double> keys;
  Number all = 0, ofChosen = 0;
  for (std::int64_t e = 0; e < config.experts; ++e) {
    using std::exp;
    affinities.push_back(1.0 / (1.0 + exp(-logits[e])));
    keys.push_back(valueOf(affinities[e]) + (bias.empty() ? 0 : bias[e]));
    all += affinities[e];
  }
  it.experts = groupedRanking(config, keys);
  it.experts.resize(config.topK);
  for (std::int64_t expert : it.experts) ofChosen += affinities[expert];
  const double scale = config.sigmoid.routingScale == 0 ? 1 : config.sigmoid.routingScale;
  for (std::int64_t expert : it.experts) {
    it.weights.push_back(scale * affinities[expert] / ofChosen);
    it.first[expert] += 1.0;
  }
  for (std::int64_t e = 0; e < config.experts; ++e) it.second[e] = affinities[e] / all;
}

template <typename Number>
Number squaredVariation(const std::vector<Number>& values) {
  const auto count = static_cast<double>(values.size());
  Number mean = 0, variance = 0;
  for (const Number& value : values) mean += value / count;
  for (const Number& value : values) variance += (value - mean) * (value - mean) / count;
  return variance / (mean * mean);
}

template <typename Number>
Number product(const std::vector<Number>& a, const std::vector<Number>& b) {
  Number sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

std::int64_t sequence(const moecclMoeConfig_t& config) {
  return config.sigmoid.sequenceTokens == 0 ? std::max<std::int64_t>(config.tokens, 1)
                                            : config.sigmoid.sequenceTokens;
}

}  // namespace

template <typename Number>
Decision<Number> decide(const moecclMoeConfig_t& config, std::int64_t token,
                        const std::vector<Number>& logits, const std::vector<Number>& noise,
                        const std::vector<double>& bias, const Chance& chance) {
  Decision<Number> it;
  it.first.assign(config.experts, Number(0));
  it.second.assign(config.experts, Number(0));
  switch (config.gate) {
    case moecclGateNoisyTopK:
      noisyGate(config, token, logits, noise, chance, it);
      break;
    case moecclGateGShard:
      softmaxGate(config, logits, it);
      if (chance.second && !(2 * valueOf(it.weights[1]) > chance.second(token))) it.experts[1] = -1;
      break;
    case moecclGateExpertChoice:
      it.experts.resize(config.experts);
      std::iota(it.experts.begin(), it.experts.end(), 0);
      it.weights = softmax(logits);
      break;
    case moecclGateSigmoid:
      sigmoidGate(config, logits, bias, it);
      break;
    default:
      softmaxGate(config, logits, it);
  }
  return it;
}

template <typename Number>
void renormalize(const moecclMoeConfig_t& config, const std::vector<bool>& kept,
                 Decision<Number>& it) {
  const bool probability =
      config.topK == 1 && (config.gate == moecclGateSoftmax || config.gate == moecclGateSwitch);
  if (config.renormalize == 0 || probability) return;
  const bool scaled = config.gate == moecclGateSigmoid && config.sigmoid.routingScale != 0;
  Number sum = 0;
  for (std::size_t c = 0; c < kept.size(); ++c)
    if (kept[c]) sum += it.weights[c];
  if (!(valueOf(sum) > 0)) return;
  for (Number& weight : it.weights) weight *= (scaled ? config.sigmoid.routingScale : 1.0) / sum;
}

std::int64_t sections(const moecclMoeConfig_t& config) {
  return (config.tokens + sequence(config) - 1) / sequence(config);
}

std::int64_t sectionOf(const moecclMoeConfig_t& config, std::int64_t token) {
  return token / sequence(config);
}

template <typename Number>
Number sectionLoss(const moecclMoeConfig_t& config, std::int64_t section,
                   const std::vector<Number>& first, const std::vector<Number>& second) {
  const auto experts = static_cast<double>(config.experts);
  const auto tokens =
      static_cast<double>(std::min(sequence(config), config.tokens - section * sequence(config)));
  switch (config.gate) {
    case moecclGateNoisyTopK: {
      const bool defaults =
          config.noisyTopK.importanceWeight == 0 && config.noisyTopK.loadWeight == 0;
      return (defaults ? 1 : config.noisyTopK.importanceWeight) * squaredVariation(first) +
             (defaults ? 1 : config.noisyTopK.loadWeight) * squaredVariation(second);
    }
    case moecclGateGShard:
      return product(first, second) / (experts * tokens * tokens);
    case moecclGateExpertChoice:
      return 0;
    case moecclGateSigmoid:
      return experts / (static_cast<double>(config.topK) * tokens * tokens) *
             product(first, second) / static_cast<double>(sections(config));
    default:
      return experts * product(first, second) / (tokens * tokens);
  }
}

template Decision<double> decide(const moecclMoeConfig_t&, std::int64_t, const std::vector<double>&,
                                 const std::vector<double>&, const std::vector<double>&,
                                 const Chance&);
template Decision<Dual> decide(const moecclMoeConfig_t&, std::int64_t, const std::vector<Dual>&,
                               const std::vector<Dual>&, const std::vector<double>&, const Chance&);
template void renormalize(const moecclMoeConfig_t&, const std::vector<bool>&, Decision<double>&);
template void renormalize(const moecclMoeConfig_t&, const std::vector<bool>&, Decision<Dual>&);
template double sectionLoss(const moecclMoeConfig_t&, std::int64_t, const std::vector<double>&,
                            const std::vector<double>&);
template Dual sectionLoss(const moecclMoeConfig_t&, std::int64_t, const std::vector<Dual>&,
                          const std::vector<Dual>&);

}  // namespace moe_reference
