// The product of tokens with a gate on a GPU, of which one thread block makes a tile; the bits are
// those of a CPU. Nothing here needs a GPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/gates/parts.h"
#include "kernels/gates/random.h"

namespace moeccl::gates {

// Format: of tokens and gate, which are decoded to float32.
template <typename Format>
struct LogitsProblem {
  const typename Format::Bits* input;  // [tokens][embedding]
  const typename Format::Bits* gate;   // [embedding][experts]
  std::int64_t tokens, embedding, experts;
  double* logits;  // [tokens][perToken], of which the first `experts` are set
  std::int64_t perToken;
  // With jitter above 0 inputs are multiplied by random numbers first.
  double jitter;
  std::int64_t firstToken;
  Random random;

  MOECCL_DEVICE float inputAt(std::int64_t token, std::int64_t m) const {
    return jittered(Format::decode(input[token * embedding + m]), token, m);
  }
  MOECCL_DEVICE float weightAt(std::int64_t m, std::int64_t expert) const {
    return Format::decode(gate[m * experts + expert]);
  }
  // A value in place of the input's.
  MOECCL_DEVICE float jittered(float value, std::int64_t token, std::int64_t m) const {
    if (!(jitter > 0)) return value;
    const double uniform = random.fourUniform(firstToken + token, m / 4)[m % 4];
    return static_cast<float>(value * jitterFactor(jitter, uniform));
  }
};

// Numbers that a thread reads from shared memory at once.
template <int kCount>
struct alignas(kCount * sizeof(float)) LogitsPack {
  float values[kCount];
};

// Each of kThreads threads has kThreadTokens x kThreadExperts sums.
template <int kTokensOfTile, int kExpertsOfTile, int kThreadTokens, int kThreadExperts>
struct LogitsTile {
  static constexpr int kTokens = kTokensOfTile, kExperts = kExpertsOfTile;
  static constexpr int kDepth = kChain;  // of the embedding at a time
  static constexpr int kThreads = 256;
  static constexpr int kColumns = kExperts / kThreadExperts;  // threads side by side
  static constexpr int kRows = kTokens / kThreadTokens;
  static_assert(kColumns * kRows == kThreads);
  // A warp fetches inputs of 4 tokens, 8 neighbours each: whole sectors of memory. With 4 numbers
  // between the rows it puts them into 32 banks.
  static constexpr int kNeighbours = 8;
  static constexpr int kTokensAtOnce = kThreads / kNeighbours, kDepthAtOnce = kThreads / kExperts;

  LogitsPack<kThreadTokens> inputs[kDepth][kRows + 4 / kThreadTokens];
  LogitsPack<kThreadExperts> weights[kDepth][kColumns];

  struct Sums {
    double values[kThreadTokens][kThreadExperts];
  };
  // On its way to the tile while the one before is used.
  struct Fetched {
    float inputs[kTokens / kTokensAtOnce][kDepth / kNeighbours];
    float weights[kDepth / kDepthAtOnce];
  };

  // Zeroes behind the ends add nothing.
  template <typename Format>
  MOECCL_DEVICE static Fetched fetch(const LogitsProblem<Format>& problem, std::int64_t firstToken,
                                     std::int64_t firstExpert, std::int64_t begin, int thread) {
    Fetched fetched;
    const std::int64_t token = firstToken + thread / kNeighbours, m = begin + thread % kNeighbours;
    for (int t = 0; t < kTokens / kTokensAtOnce; ++t)
      for (int d = 0; d < kDepth / kNeighbours; ++d) {
        const std::int64_t row = token + t * kTokensAtOnce, column = m + d * kNeighbours;
        const bool inside = row < problem.tokens && column < problem.embedding;
        fetched.inputs[t][d] = inside ? problem.inputAt(row, column) : 0;
      }
    const std::int64_t row = begin + thread / kExperts, expert = firstExpert + thread % kExperts;
    for (int d = 0; d < kDepth / kDepthAtOnce; ++d) {
      const std::int64_t at = row + d * kDepthAtOnce;
      const bool inside = at < problem.embedding && expert < problem.experts;
      fetched.weights[d] = inside ? problem.weightAt(at, expert) : 0;
    }
    return fetched;
  }

  MOECCL_DEVICE void put(const Fetched& fetched, int thread) {
    const int m = thread % kNeighbours, token = thread / kNeighbours;
    for (int t = 0; t < kTokens / kTokensAtOnce; ++t)
      for (int d = 0; d < kDepth / kNeighbours; ++d) {
        const int row = token + t * kTokensAtOnce;
        inputs[m + d * kNeighbours][row / kThreadTokens].values[row % kThreadTokens] =
            fetched.inputs[t][d];
      }
    const int expert = thread % kExperts;
    for (int d = 0; d < kDepth / kDepthAtOnce; ++d)
      weights[thread / kExperts + d * kDepthAtOnce][expert / kThreadExperts]
          .values[expert % kThreadExperts] = fetched.weights[d];
  }

  MOECCL_DEVICE void multiply(int thread, Sums& sums) const {
    const int column = thread % kColumns, row = thread / kColumns;
    float chains[kThreadTokens][kThreadExperts] = {};
    for (int m = 0; m < kDepth; ++m) {
      const LogitsPack<kThreadTokens> a = inputs[m][row];
      const LogitsPack<kThreadExperts> b = weights[m][column];
      for (int t = 0; t < kThreadTokens; ++t)
        for (int e = 0; e < kThreadExperts; ++e)
          chains[t][e] = std::fma(a.values[t], b.values[e], chains[t][e]);
    }
    for (int t = 0; t < kThreadTokens; ++t)
      for (int e = 0; e < kThreadExperts; ++e)
        sums.values[t][e] += static_cast<double>(chains[t][e]);
  }

  template <typename Format>
  MOECCL_DEVICE static void store(const LogitsProblem<Format>& problem, std::int64_t firstToken,
                                  std::int64_t firstExpert, int thread, const Sums& sums) {
    const int column = thread % kColumns, row = thread / kColumns;
    for (int t = 0; t < kThreadTokens; ++t)
      for (int e = 0; e < kThreadExperts; ++e) {
        const std::int64_t token = firstToken + row * kThreadTokens + t;
        const std::int64_t expert = firstExpert + column * kThreadExperts + e;
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
