// The product of tokens with a gate on a GPU, of which one thread block makes a tile. As logitsOf of parts.h:
// each logit is one sum in double, in the order of the embedding, so that the bits are those of a CPU. Nothing
// here needs a GPU, so that it is tested on hosts.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/gates/parts.h"
#include "kernels/gates/random.h"

namespace moeccl::gates {

struct LogitsProblem {
  const float* input;  // [tokens][embedding]
  const float* gate;   // [embedding][experts]
  std::int64_t tokens, embedding, experts;
  double* logits;  // [tokens][perToken], of which the first `experts` are set
  std::int64_t perToken;
  // With jitter above 0 inputs are multiplied by random numbers first.
  double jitter;
  std::int64_t firstToken;
  Random random;

  // Rounded to float, for the sake of exact products.
  MOECCL_DEVICE float inputAt(std::int64_t token, std::int64_t m) const {
    const float value = input[token * embedding + m];
    if (!(jitter > 0)) return value;
    const double uniform = random.fourUniform(firstToken + token, m / 4)[m % 4];
    return static_cast<float>(value * jitterFactor(jitter, uniform));
  }
};

// Each of kTileThreads threads has kThreadTokens x kThreadExperts sums.
template <int kTokensOfTile, int kExpertsOfTile, int kThreadTokens, int kThreadExperts>
struct LogitsTile {
  static constexpr int kTokens = kTokensOfTile, kExperts = kExpertsOfTile;
  static constexpr int kDepth = 32;  // of the embedding at a time
  static constexpr int kThreads = 256;
  static constexpr int kColumns = kExperts / kThreadExperts;  // threads side by side
  static constexpr int kRows = kTokens / kThreadTokens;
  static_assert(kColumns * kRows == kThreads);
  static constexpr int kInputs = kTokens * kDepth / kThreads;
  static constexpr int kWeights = (kExperts * kDepth + kThreads - 1) / kThreads;

  double inputs[kDepth][kTokens + 1];
  double weights[kDepth][kExperts + 1];

  struct Sums {
    double values[kThreadTokens][kThreadExperts];
  };
  // On its way to the tile while the one before is used.
  struct Fetched {
    float inputs[kInputs], weights[kWeights];
  };

  // Zeroes behind the ends add nothing.
  MOECCL_DEVICE static Fetched fetch(const LogitsProblem& problem, std::int64_t firstToken,
                                     std::int64_t firstExpert, std::int64_t begin, int thread) {
    Fetched fetched;
    for (int i = 0; i < kInputs; ++i) {
      const int at = thread + i * kThreads;
      const std::int64_t token = firstToken + at / kDepth, m = begin + at % kDepth;
      const bool inside = token < problem.tokens && m < problem.embedding;
      fetched.inputs[i] = inside ? problem.inputAt(token, m) : 0;
    }
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kThreads;
      const std::int64_t m = begin + at / kExperts, expert = firstExpert + at % kExperts;
      const bool inside =
          at < kExperts * kDepth && m < problem.embedding && expert < problem.experts;
      fetched.weights[i] = inside ? problem.gate[m * problem.experts + expert] : 0;
    }
    return fetched;
  }

  MOECCL_DEVICE void put(const Fetched& fetched, int thread) {
    for (int i = 0; i < kInputs; ++i) {
      const int at = thread + i * kThreads;
      inputs[at % kDepth][at / kDepth] = fetched.inputs[i];
    }
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kThreads;
      if (at < kExperts * kDepth) weights[at / kExperts][at % kExperts] = fetched.weights[i];
    }
  }

  MOECCL_DEVICE void multiply(int thread, Sums& sums) const {
    const int column = thread % kColumns, row = thread / kColumns;
    for (int m = 0; m < kDepth; ++m) {
      double a[kThreadTokens], b[kThreadExperts];
      for (int t = 0; t < kThreadTokens; ++t) a[t] = inputs[m][row + t * kRows];
      for (int e = 0; e < kThreadExperts; ++e) b[e] = weights[m][column + e * kColumns];
      for (int t = 0; t < kThreadTokens; ++t)
        for (int e = 0; e < kThreadExperts; ++e)
#ifdef __CUDA_ARCH__
          sums.values[t][e] = ::fma(a[t], b[e], sums.values[t][e]);
#else  // the same, as the product is exact
          sums.values[t][e] += a[t] * b[e];
#endif
    }
  }

  MOECCL_DEVICE static void store(const LogitsProblem& problem, std::int64_t firstToken,
                                  std::int64_t firstExpert, int thread, const Sums& sums) {
    const int column = thread % kColumns, row = thread / kColumns;
    for (int t = 0; t < kThreadTokens; ++t)
      for (int e = 0; e < kThreadExperts; ++e) {
        const std::int64_t token = firstToken + row + t * kRows;
        const std::int64_t expert = firstExpert + column + e * kColumns;
        if (token < problem.tokens && expert < problem.experts)
          problem.logits[token * problem.perToken + expert] = sums.values[t][e];
      }
  }
};

// Calls function(SomeTile{}) for the tile that fits so many experts.
template <typename Function>
void withLogitsTile(std::int64_t experts, Function function) {
  if (experts <= 8) return function.template operator()<LogitsTile<64, 8, 2, 1>>();
  if (experts <= 16) return function.template operator()<LogitsTile<64, 16, 2, 2>>();
  if (experts <= 32) return function.template operator()<LogitsTile<64, 32, 4, 2>>();
  function.template operator()<LogitsTile<64, 64, 4, 4>>();
}

}  // namespace moeccl::gates
