// How the sums of a batch are made on a GPU: rows of neighbouring tokens of one section are summed
// by one block each, then the rows, always in the same order.
#pragma once

#include <cstdint>

#include "kernels/gates/rule.h"

namespace moeccl::gates {

// The rows of some tokens of a batch. Where rows begin does not depend on the part: the first and
// the last may be short.
struct TokenRows {
  static constexpr std::int64_t kTokens = 8;

  std::int64_t first, tokens;  // of the part, in the batch
  std::int64_t sectionTokens, sectionRows;

  MOECCL_DEVICE std::int64_t rowOf(std::int64_t token) const {
    const std::int64_t section = token / sectionTokens;
    return section * sectionRows + (token - section * sectionTokens) / kTokens;
  }
  // Numbers of rows count from the first one of the part.
  MOECCL_DEVICE std::int64_t count() const {
    return tokens == 0 ? 0 : rowOf(first + tokens - 1) - rowOf(first) + 1;
  }
  MOECCL_DEVICE std::int64_t firstSection() const { return first / sectionTokens; }
  MOECCL_DEVICE std::int64_t sections() const {
    return tokens == 0 ? 0 : (first + tokens - 1) / sectionTokens - firstSection() + 1;
  }
  // The tokens of a row, in the batch.
  MOECCL_DEVICE std::int64_t begin(std::int64_t row) const {
    const std::int64_t inBatch = rowOf(first) + row, section = inBatch / sectionRows;
    const std::int64_t token =
        section * sectionTokens + (inBatch - section * sectionRows) * kTokens;
    return token < first ? first : token;
  }
  MOECCL_DEVICE std::int64_t end(std::int64_t row) const {
    return row + 1 < count() ? begin(row + 1) : first + tokens;
  }
  // The rows of a section, counted from the first one of the part.
  MOECCL_DEVICE std::int64_t sectionBegin(std::int64_t section) const {
    const std::int64_t row = section * sectionRows - rowOf(first);
    return row < 0 ? 0 : row < count() ? row : count();
  }
};

inline TokenRows tokenRows(const Config& config, std::int64_t first, std::int64_t tokens) {
  const std::int64_t length = sections(config) == 1 ? config.batchTokens : config.sequenceTokens;
  const std::int64_t section = length > 0 ? length : 1;
  return {first, tokens, section, (section - 1) / TokenRows::kTokens + 1};
}

// The most rows that any `tokens` tokens of the batch make.
inline std::int64_t mostTokenRows(const Config& config, std::int64_t tokens) {
  const TokenRows rows = tokenRows(config, 0, tokens);
  const std::int64_t sections = tokens / rows.sectionTokens + 2;
  return tokens / TokenRows::kTokens + 2 * sections;
}

// What one block sums over a row, and what the rows are summed to: [3][experts], the choices of
// each expert and the two terms of the loss.
template <typename Lanes>
MOECCL_DEVICE void addRows(const Lanes& lanes, const TokenRows& rows, std::int64_t experts,
                           const double* sumsOfRows, std::int64_t item, double* sums) {
  std::int64_t begin = 0, end = rows.count(), column = item, target = item;
  if (item >= experts) {
    const std::int64_t section = rows.firstSection() + (item - experts) / (2 * experts);
    const std::int64_t term = (item - experts) % (2 * experts);
    begin = rows.sectionBegin(section);
    end = rows.sectionBegin(section + 1);
    column = experts + term;
    target = (2 + 2 * section) * experts + term;
  }
  double sum = 0;
  each(lanes, end - begin,
       [&](std::int64_t row) { sum += sumsOfRows[(begin + row) * 3 * experts + column]; });
  sum = lanes.sum(sum);
  if (lanes.index() == 0) sums[target] += sum;
}

inline std::int64_t rowSumItems(const TokenRows& rows, std::int64_t experts) {
  return experts + rows.sections() * 2 * experts;
}

}  // namespace moeccl::gates
