// A pass around a caller's gate and experts, in numbers that are chosen so that all of them are
// exact in every datatype.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/moe/problem.h"

namespace moeccl::test {

constexpr std::int64_t kOwnChoices = 2;

// What an MP group brings, and what comes of it. Experts double what they are given.
struct OwnNumbers {
  OwnNumbers(const Problem& problem, int batch);

  std::vector<double> tokens, gradients;  // [tokens][embedding]
  std::vector<std::int32_t> experts;      // [tokens][kOwnChoices]
  std::vector<double> weights;
  std::vector<double> output, inputGradient, weightGradients;
};

// Of automatic chunks.
moecclMoeConfig_t ownConfig(const Problem& problem);

// What the caller's experts do: `from` is rows.rows, or rows.results backward. On the first shard
// alone (`counts`), as shards' results are added.
void doubleRows(const Problem& problem, const moecclMoeRows_t& rows, const void* from, bool counts);

}  // namespace moeccl::test
