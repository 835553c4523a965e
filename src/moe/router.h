// Gates the tokens of a batch, or of one of its parts, and moves them to the places of their
// experts and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gate.h"
#include "kernels/permute.h"
#include "src/moe/layer_shape.h"

namespace moeccl {

// What there is to say about a batch: per part one row of doubles, [4][experts]: sums of
// probabilities, first choices, choices, and choices that found a place. Counts are whole numbers.
// Rows of different parts come from different ranks under S1, and are added in the order of the
// parts under every schedule, so that the loss is the same to the last bit.
class BatchSums {
 public:
  explicit BatchSums(const LayerShape& shape);

  std::int64_t rowSize() const { return 4 * experts_; }
  double* rows() { return values_.data(); }
  double* row(int part) { return values_.data() + part * rowSize(); }
  GateSums gateSums(int part) {
    return {row(part), row(part) + experts_, row(part) + 2 * experts_};
  }
  double* kept(int part) { return row(part) + 3 * experts_; }

 private:
  std::int64_t experts_;
  std::vector<double> values_;
};

class Router {
 public:
  // For up to `parts` parts at a time.
  Router(const LayerShape& shape, int parts);

  // Routes parts firstPart to firstPart + parts - 1 of a batch; `input` begins with the first of
  // their tokens, without padding. Sets the rows of these parts in `sums`. Capacity groups must not
  // cross the ends.
  void route(const float* gate, const float* input, int firstPart, int parts, BatchSums& sums);

  // Tokens that were routed, without padding.
  std::int64_t tokens() const { return tokens_; }
  // As scatterTokens and combineTokens; places without a token are zeroed.
  void scatter(const float* input, std::int64_t expertStride, float* rows) const;
  void combine(const float* rows, std::int64_t expertStride, float* output) const;

  // For kernels that take them as they are.
  Choices choices() const {
    return {chosen_.data(), slots_.data(), weights_.data(), tokens_, shape_.choices};
  }

 private:
  LayerShape shape_;
  std::int64_t tokens_ = 0, groups_ = 0;
  std::vector<std::int32_t> chosen_;  // [tokens][choices], as are weights and slots
  std::vector<float> weights_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int64_t> used_;  // [groups][experts]
  std::vector<double> workspace_;
};

// The sums of all parts as moecclMoeStats_t reports them.
struct BatchStats {
  double auxiliaryLoss = 0;
  std::int64_t droppedChoices = 0;
  std::vector<std::int64_t> assigned, kept;  // [experts], sized by the owner
};

void summarise(const LayerShape& shape, BatchSums& sums, BatchStats* stats);

}  // namespace moeccl
