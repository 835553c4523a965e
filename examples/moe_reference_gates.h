// The gates that moeccl/moe.h describes, in plain loops. They compute with double, or with Dual
// where slopes are wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "examples/dual.h"
#include "moeccl/moe.h"

namespace moe_reference {

// The random numbers of a token of the batch. Without functions nothing is random.
struct Chance {
  std::function<double(std::int64_t token, std::int64_t element)> jitter;  // uniform in (0, 1)
  std::function<double(std::int64_t token)> second;                        // uniform in (0, 1)
  std::function<double(std::int64_t token, std::int64_t expert)> normal;
};

// What a gate makes of a token.
template <typename Number>
struct Decision {
  std::vector<std::int64_t> experts;  // of its choices; -1: none. Expert choice: all experts
  std::vector<Number> weights;        // of each
  // [E] what the token adds to sums that the loss is made of: two per expert.
  std::vector<Number> first, second;
};

// logits, noise [E]: of the token; noise with NoisyTopK alone. bias [E] or empty.
template <typename Number>
Decision<Number> decide(const moecclMoeConfig_t& config, std::int64_t token,
                        const std::vector<Number>& logits, const std::vector<Number>& noise,
                        const std::vector<double>& bias, const Chance& chance);

// The weights after drops, with config.renormalize. kept: by choice.
template <typename Number>
void renormalize(const moecclMoeConfig_t& config, const std::vector<bool>& kept,
                 Decision<Number>& it);

// What is summed up by itself: the token's sequence with Sigmoid, else the batch.
std::int64_t sections(const moecclMoeConfig_t& config);
std::int64_t sectionOf(const moecclMoeConfig_t& config, std::int64_t token);

// What a section adds to the loss, of the sums [E] over its tokens, of which there is at least one.
template <typename Number>
Number sectionLoss(const moecclMoeConfig_t& config, std::int64_t section,
                   const std::vector<Number>& first, const std::vector<Number>& second);

}  // namespace moe_reference
