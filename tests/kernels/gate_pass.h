// Batches of tokens for gates of every kind, and passes of them through the real gates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gates/gate.h"

namespace moeccl::gates {

// A gate, its parameters and a batch. Values are floats, whatever Real is.
struct Batch {
  std::string name;
  Config config;
  std::vector<double> gate, noise;  // [embedding][experts]
  std::vector<double> bias;         // [experts]
  std::vector<double> input;        // [batchTokens][embedding]
  std::optional<Draw> draw;
};

// Gates of every kind, in many sizes: one expert, all experts chosen, no token and groups cut short
// too.
std::vector<Config> everyConfig();
std::string nameOf(const Config& config);
// With data from `seed`. Few different values make equal logits common.
enum class Values { any, few };
Batch batchOf(const Config& config, unsigned seed, Values values = Values::any);

// A batch through the real gate, in parts that end where `ends` says, the last at the batch's end.
template <typename Real>
struct Pass {
  std::vector<Real> gate, noise, input;
  std::vector<double> logits;
  std::vector<std::int32_t> chosen;
  std::vector<Real> weights;
  std::vector<double> sums, dSums, factors;
  std::vector<std::int64_t> used, slots;
  double loss = 0;
  std::vector<Real> dGate, dNoise, dInput;

  Pass(const Batch& batch, double scale, const std::vector<std::int64_t>& ends);
  // Sets the last three. dWeights [batchTokens][width].
  void backward(const Batch& batch, const std::vector<Real>& dWeights,
                const std::vector<std::int64_t>& ends);
};

}  // namespace moeccl::gates
