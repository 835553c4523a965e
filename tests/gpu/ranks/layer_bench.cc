// A layer of bfloat16 elements: forward alone in steps of decoding, and with its backward pass in
// one of training, dropless and under S1 with a capacity. tests/gpu/layer_bench.py measures
// PyTorch's beside it.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "moeccl/moe.h"
#include "tests/gpu/measurement.h"
#include "tests/gpu/ranks/rank.h"
#include "tests/moe/on_device.h"

namespace moeccl::gpu {
namespace {

using test::check;

struct Layer {
  moecclMoeConfig_t config;

  bool trains() const { return config.training != 0; }
  const char* kind() const { return config.dropless != 0 ? "dropless" : "S1"; }
  // What its matrices take.
  double flops() const {
    return 4.0 * static_cast<double>(config.tokens * config.topK) *
           static_cast<double>(config.embedding * config.hidden);
  }
  // The bytes of the matrices that serve a token, read once.
  double bytes() const {
    const double busy = static_cast<double>(std::min(config.tokens * config.topK, config.experts));
    return 4 * busy * static_cast<double>(config.embedding * config.hidden);
  }
};

std::vector<Layer> layersOf(const Rank& rank, std::int64_t experts) {
  std::vector<Layer> all;
  const std::int64_t training = rank.quick() ? 64 : 8192;
  const std::vector<std::int64_t> decoding =
      rank.quick() ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 16, 128};
  const auto add = [&](std::int64_t tokens, bool dropless) {
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = tokens;
    config.embedding = rank.quick() ? 32 : 7168;
    config.hidden = rank.quick() ? 64 : 2048;
    config.experts = experts;
    config.topK = rank.quick() ? 2 : 8;
    config.capacityFactor = dropless ? 0 : 1.25;
    config.dropless = dropless ? 1 : 0;
    config.datatype = moecclBfloat16;
    config.schedule = moecclScheduleS1;
    config.training = tokens == training ? 1 : 0;
    all.push_back({config});
  };
  for (const bool dropless : {true, false}) add(training, dropless);
  for (const std::int64_t tokens : decoding) add(tokens, true);
  return all;
}

// Random numbers up to `most`, some thousands again and again: large matrices are filled in a
// moment.
class Numbers {
 public:
  Numbers(test::Device& device, std::int64_t count, double most) : device_(device) {
    constexpr std::int64_t kOnce = std::int64_t{1} << 24;
    std::mt19937 random(1);
    std::vector<double> few(static_cast<std::size_t>(std::min<std::int64_t>(count, 4096)));
    for (double& value : few) value = std::uniform_real_distribution<double>(-most, most)(random);
    const moe_reference::Elements encoded = moe_reference::encode(moecclBfloat16, few);
    moe_reference::Elements piece;
    while (std::ssize(piece) < std::min(2 * count, 2 * kOnce))
      piece.insert(piece.end(), encoded.begin(), encoded.end());
    const auto bytes = static_cast<std::size_t>(2 * count);
    memory_ = device.allocate(bytes);
    for (std::size_t at = 0; at < bytes; at += piece.size())
      device.put(memory_ + at, piece.data(), std::min(piece.size(), bytes - at));
  }
  Numbers(const Numbers&) = delete;
  ~Numbers() { device_.free(memory_); }
  void* get() const { return memory_; }

 private:
  test::Device& device_;
  unsigned char* memory_ = nullptr;
};

// Matrices of the rank's experts and their gradients, for all layers of as many.
struct Matrices {
  Matrices(test::Device& device, const Layer& layer, std::int64_t experts)
      : gate(device, layer.config.embedding * layer.config.experts, 0.05),
        w1(device, experts * layer.config.embedding * layer.config.hidden, 0.05),
        w2(device, experts * layer.config.embedding * layer.config.hidden, 0.05),
        dGate(device, layer.config.embedding * layer.config.experts, 0),
        dW1(device, experts * layer.config.embedding * layer.config.hidden, 0),
        dW2(device, experts * layer.config.embedding * layer.config.hidden, 0) {}

  Numbers gate, w1, w2, dGate, dW1, dW2;
};

struct Milliseconds {
  double forward, both;
};

Milliseconds measure(Rank& rank, moecclGrid_t grid, const Layer& what, const Matrices& matrices) {
  const moecclMoeConfig_t& config = what.config;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = matrices.gate.get(), weights.w1 = matrices.w1.get();
  weights.w2 = matrices.w2.get();
  check(moecclMoeLayerSetWeights(layer, &weights));
  if (what.trains()) {
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.gate = matrices.dGate.get(), gradients.w1 = matrices.dW1.get();
    gradients.w2 = matrices.dW2.get();
    check(moecclMoeLayerSetGradients(layer, &gradients));
  }
  const std::int64_t batch = config.tokens * config.embedding;
  const Numbers tokens(rank.device(), batch, 1), output(rank.device(), batch, 1),
      slopes(rank.device(), batch, 1);
  const auto forward = [&] {
    check(moecclMoeForward(layer, tokens.get(), output.get(), rank.stream()));
  };
  const auto both = [&] {
    forward();
    check(moecclMoeBackward(layer, slopes.get(), 0.01, output.get(), rank.stream()));
  };
  const int calls = rank.quick() ? 1 : 5, measurements = rank.quick() ? 1 : 7;
  const auto median = [&](const auto& call) {
    call();
    std::vector<double> times;
    for (int i = 0; i < measurements; ++i)
      times.push_back(rank.device().milliseconds(rank.stream(), [&] {
        for (int j = 0; j < calls; ++j) call();
      }) / calls);
    std::ranges::nth_element(times, times.begin() + measurements / 2);
    return times[static_cast<std::size_t>(measurements) / 2];
  };
  Milliseconds took{median(forward), 0};
  if (what.trains()) took.both = median(both);
  check(moecclMoeLayerDestroy(layer));
  return took;
}

void print(const Rank& rank, const Layer& layer, const Milliseconds& took) {
  const moecclMoeConfig_t& config = layer.config;
  const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
  std::printf("%-10s%8lld%8lld%8lld%8lld%4lld%14.3f%14.3f\n", layer.kind(), number(config.tokens),
              number(config.embedding), number(config.hidden), number(config.experts),
              number(config.topK), took.forward, took.both);
  std::fflush(stdout);
  std::vector<Field> fields{{"layer", std::string(layer.kind())},
                            {"type", std::string("bfloat16")},
                            {"tokens", config.tokens},
                            {"embedding", config.embedding},
                            {"hidden", config.hidden},
                            {"experts", config.experts},
                            {"choices", config.topK},
                            {"capacity_factor", config.capacityFactor},
                            {"ranks", rank.ranks()},
                            {"flops", layer.flops()},
                            {"bytes", layer.bytes()},
                            {"by", std::string("moeccl")},
                            {"forward_ms", took.forward}};
  if (layer.trains()) fields.emplace_back("both_ms", took.both);
  record(fields);
}

RANKS_BENCH(layer) {
  if (rank.rank() == 0)
    std::printf("%-10s%8s%8s%8s%8s%4s%14s%14s\n", "", "tokens", "M", "H", "E", "k", "forward, ms",
                "both, ms");
  const moecclGrid_t grid = rank.gridInTurn(0, {1, rank.ranks(), 1, moecclOrderEspEp});
  for (const std::int64_t perRank : {64, 256}) {
    const std::int64_t local = rank.quick() ? perRank / 32 : (perRank - 1) / rank.ranks() + 1;
    const std::vector<Layer> layers = layersOf(rank, local * rank.ranks());
    const Matrices matrices(rank.device(), layers[0], local);
    for (const Layer& layer : layers)
      rank.step(std::string(layer.kind()) + ", " + std::to_string(layer.config.tokens) + " tokens",
                [&] {
                  const Milliseconds took = measure(rank, grid, layer, matrices);
                  if (rank.rank() == 0) print(rank, layer, took);
                });
  }
}

}  // namespace
}  // namespace moeccl::gpu
