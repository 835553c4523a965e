// Adds logits up in chains of 32, as the real gates do, and asks the reference.
#include "tests/kernels/gates_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "examples/moe_reference_gates.h"

namespace moeccl::gates {
namespace {

using Row = std::vector<double>;
using Decision = moe_reference::Decision<double>;

moecclMoeConfig_t configOf(const Config& config) {
  moecclMoeConfig_t as = MOECCL_MOE_CONFIG_INITIALIZER;
  switch (config.kind) {
    case Kind::softmax:
      as.gate = moecclGateSoftmax;
      break;
    case Kind::noisy:
      as.gate = moecclGateNoisyTopK;
      break;
    case Kind::gshard:
      as.gate = moecclGateGShard;
      break;
    case Kind::expertChoice:
      as.gate = moecclGateExpertChoice;
      break;
    case Kind::sigmoid:
      as.gate = moecclGateSigmoid;
      break;
  }
  as.tokens = config.batchTokens;
  as.experts = config.experts;
  as.topK = config.choices;
  as.noisyTopK.importanceWeight = config.importanceWeight;
  as.noisyTopK.loadWeight = config.loadWeight;
  as.sigmoid.expertGroups = config.expertGroups;
  as.sigmoid.topGroups = config.topGroups;
  as.sigmoid.routingScale = config.routingScale;
  as.sigmoid.sequenceTokens = config.sequenceTokens;
  return as;
}

moe_reference::Chance chanceOf(const Batch& batch) {
  if (!batch.draw) return {};
  const Draw draw = *batch.draw;
  return {.jitter = {},
          .second = [draw](std::int64_t token) { return Random(draw).uniform(token, 0); },
          .normal = [draw](std::int64_t token,
                           std::int64_t expert) { return Random(draw).normal(token, expert); }};
}

// Products of a token with each expert, in chains of 32.
template <typename Real>
Row products(const Batch& batch, std::int64_t token, const std::vector<double>& matrix) {
  const std::int64_t embedding = batch.config.embedding, experts = batch.config.experts;
  Row row(experts);
  for (std::int64_t e = 0; e < experts; ++e) {
    Real chain = 0;
    for (std::int64_t m = 0; m < embedding; ++m) {
      double x = batch.input[token * embedding + m];
      if (batch.config.jitter > 0 && batch.draw) {
        const double u = Random(*batch.draw).fourUniform(token, m / 4)[m % 4];
        x *= 1 + batch.config.jitter * (2 * u - 1);
      }
      const auto weight = static_cast<Real>(matrix[m * experts + e]);
      chain = std::fma(static_cast<Real>(x), weight, chain);
      if (m % 32 == 31) row[e] += std::exchange(chain, Real{0});
    }
    row[e] += chain;
  }
  return row;
}

// Each expert takes, of each capacity group, the tokens that give it the largest weights; of equal
// ones the earlier.
void chooseTokens(const Config& config, const std::vector<Decision>& decisions,
                  ReferenceResult& result) {
  for (std::int32_t e = 0; e < config.experts; ++e)
    for (std::int64_t begin = 0; begin < config.batchTokens; begin += config.capacityTokens) {
      std::vector<std::int64_t> order(std::min(config.capacityTokens, config.batchTokens - begin));
      std::iota(order.begin(), order.end(), begin);
      const auto weightOf = [&](std::int64_t token) { return decisions[token].weights[e]; };
      std::ranges::stable_sort(order, std::ranges::greater{}, weightOf);
      order.resize(std::min<std::size_t>(order.size(), config.capacitySlots));
      for (std::int64_t token : order) result.tokens[token].push_back({e, weightOf(token)});
    }
}

}  // namespace

template <typename Real>
ReferenceResult referenceGate(const Batch& batch) {
  const moecclMoeConfig_t config = configOf(batch.config);
  const moe_reference::Chance chance = chanceOf(batch);
  const bool noisy = batch.config.kind == Kind::noisy;
  std::vector<Decision> decisions;
  std::vector<Row> first(moe_reference::sections(config), Row(config.experts)), second(first);
  for (std::int64_t t = 0; t < batch.config.batchTokens; ++t) {
    const Row logits = products<Real>(batch, t, batch.gate);
    const Row noise = noisy ? products<Real>(batch, t, batch.noise) : Row();
    const Decision& it =
        decisions.emplace_back(moe_reference::decide(config, t, logits, noise, batch.bias, chance));
    const std::int64_t section = moe_reference::sectionOf(config, t);
    for (std::int32_t e = 0; e < batch.config.experts; ++e) {
      first[section][e] += it.first[e];
      second[section][e] += it.second[e];
    }
  }
  ReferenceResult result;
  result.tokens.resize(decisions.size());
  if (batch.config.kind == Kind::expertChoice)
    chooseTokens(batch.config, decisions, result);
  else
    for (std::size_t t = 0; t < decisions.size(); ++t)
      for (std::size_t c = 0; c < decisions[t].experts.size(); ++c)
        if (const std::int64_t expert = decisions[t].experts[c]; expert >= 0)
          result.tokens[t].push_back({static_cast<std::int32_t>(expert), decisions[t].weights[c]});
  result.assigned.resize(batch.config.experts);
  for (const auto& choices : result.tokens)
    for (const Choice& choice : choices) result.assigned[choice.expert] += 1;
  for (std::size_t section = 0; section < first.size(); ++section)
    result.loss += moe_reference::sectionLoss(config, section, first[section], second[section]);
  return result;
}

template ReferenceResult referenceGate<float>(const Batch& batch);
template ReferenceResult referenceGate<double>(const Batch& batch);

}  // namespace moeccl::gates
