// Expert choice (Zhou et al. 2022, section 3.2): experts choose tokens.
//
//   S = softmax(logits), over the experts of each token;  of every capacity group each expert takes
//   the tokens with its largest S, as many as it has places, with weight S
//
// So all places are filled as long as there are tokens, no loss is needed, and a token has from
// none to all of the experts: choice e of a token is expert e. S is compared as it is handed out,
// in Real; of equal ones the earlier token is taken. An expert's places are in token order, for the
// sake of the copies; the paper has them in the order of S.
#pragma once

#include <bit>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

struct ExpertChoiceRule {
  static std::int64_t doubles(const Config& config) { return config.experts; }
  static std::int64_t ints(const Config&) { return 0; }

  template <typename Lanes>
  MOECCL_DEVICE static void choose(const Lanes& lanes, const Config& config, const Token& token,
                                   const Scratch&, std::int32_t* chosen, double* weights) {
    softmax(lanes, token.logits, config.experts, weights);
    each(lanes, config.experts, [&](std::int64_t e) { chosen[e] = static_cast<std::int32_t>(e); });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void addTerms(const Lanes&, const Config&, const Token&, const Scratch&,
                                     const std::int32_t*, const double*, double*) {}

  template <typename Lanes>
  MOECCL_DEVICE static void differentiate(const Lanes& lanes, const Config& config,
                                          const Token& token, const Scratch& scratch,
                                          const std::int32_t*, const double* dWeights,
                                          const double*, double* dLogits) {
    softmax(lanes, token.logits, config.experts, scratch.doubles);
    softmaxBackward(lanes, scratch.doubles, dWeights, config.experts, dLogits);
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static double loss(const Lanes& lanes, const Config& config, const double*, double,
                                   double* dTerms) {
    each(lanes, 2 * static_cast<std::int64_t>(config.experts),
         [&](std::int64_t i) { dTerms[i] = 0; });
    return 0;
  }
};

// The order of floats as one of unsigned numbers, with NaN and minus infinity as comparable has
// them.
MOECCL_DEVICE inline std::uint32_t sortable(float value) {
  const float least = std::numeric_limits<float>::lowest();
  const auto bits = std::bit_cast<std::uint32_t>(value >= least ? value + 0.0f : least);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

// The second half of the gate for one group and expert, as chooseTokens of rule.h, by several lanes
// that search for the smallest key to be taken, bit by bit.
template <typename Lanes>
MOECCL_DEVICE void chooseTokens(const Lanes& lanes, const Config& config, std::int64_t tokens,
                                std::int64_t group, std::int64_t expert, std::int32_t* chosen,
                                float* weights, std::int64_t* used, std::int64_t* slots) {
  const std::int64_t first = group * config.capacityTokens;
  const std::int64_t begin = first < tokens ? first : tokens, left = tokens - begin;
  const std::int64_t count = left < config.capacityTokens ? left : config.capacityTokens;
  const std::int64_t taken = count < config.capacitySlots ? count : config.capacitySlots;
  const auto at = [&](std::int64_t token) { return (begin + token) * config.experts + expert; };
  const auto countFrom = [&](std::uint32_t key) {
    std::int64_t found = 0;
    each(lanes, count, [&](std::int64_t token) { found += sortable(weights[at(token)]) >= key; });
    return lanes.sum(found);
  };
  std::uint32_t least = 0;
  for (int bit = 31; bit >= 0; --bit)
    if (const std::uint32_t key = least | 1u << bit; countFrom(key) >= taken) least = key;
  // All above, and of the equals as many as there is room for.
  std::int64_t equals =
      taken - (least == std::numeric_limits<std::uint32_t>::max() ? 0 : countFrom(least + 1));
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < count; i += Lanes::kCount) {
    const std::int64_t token = i + lanes.index();
    const std::uint32_t key = token < count ? sortable(weights[at(token)]) : 0;
    const bool equal = token < count && key == least;
    const Match ties = lanes.match(equal);
    const bool take = token < count && (key > least || (equal && ties.before < equals));
    const Match takers = lanes.match(take);
    if (token < count) {
      slots[at(token)] = take ? group * config.capacitySlots + place + takers.before : -1;
      if (!take) chosen[at(token)] = -1, weights[at(token)] = 0;
    }
    equals -= lanes.sum(static_cast<std::int64_t>(equal));
    place += lanes.sum(static_cast<std::int64_t>(take));
  }
  if (lanes.index() == 0) used[group * config.experts + expert] = taken;
}

}  // namespace moeccl::gates
