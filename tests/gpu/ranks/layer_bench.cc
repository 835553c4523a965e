// A layer of 16-bit elements, dropless and under S1 with a capacity, forward alone and with its
// backward pass. tests/gpu/layer_bench.py measures PyTorch's beside it.
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
using test::DeviceElements;

struct Layer {
  std::string type;
  moecclMoeConfig_t config;
};

std::vector<Layer> layersFor(const Rank& rank) {
  std::vector<Layer> all;
  for (const moecclDataType_t datatype : {moecclBfloat16, moecclFloat16})
    for (const int dropless : {1, 0}) {
      moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
      config.tokens = rank.quick() ? 64 : 8192;
      config.embedding = rank.quick() ? 32 : 2048;
      config.hidden = rank.quick() ? 64 : 4096;
      config.experts = (rank.quick() ? 2 : 15 / rank.ranks() + 1) * rank.ranks();
      config.topK = 2;
      config.capacityFactor = dropless != 0 ? 0 : 1.25;
      config.dropless = dropless;
      config.datatype = datatype;
      config.schedule = moecclScheduleS1;
      config.training = 1;
      all.push_back({datatype == moecclFloat16 ? "float16" : "bfloat16", config});
    }
  return all;
}

// Random numbers up to `most`, not all different: large matrices are filled in a moment.
DeviceElements numbers(test::Device& device, moecclDataType_t datatype, std::int64_t count,
                       double most) {
  std::mt19937 random(1);
  std::vector<double> few(std::min<std::int64_t>(count, 4099));
  for (double& value : few) value = std::uniform_real_distribution<double>(-most, most)(random);
  const moe_reference::Elements encoded = moe_reference::encode(datatype, few);
  const std::size_t size = encoded.size() / std::max<std::size_t>(few.size(), 1);
  moe_reference::Elements all(static_cast<std::size_t>(count) * size);
  for (std::size_t at = 0; at < all.size(); at += encoded.size())
    std::copy_n(encoded.begin(), std::min(encoded.size(), all.size() - at),
                all.begin() + static_cast<std::ptrdiff_t>(at));
  return {device, all};
}

struct Milliseconds {
  double forward, both;
};

Milliseconds measure(Rank& rank, moecclGrid_t grid, const moecclMoeConfig_t& config) {
  test::Device& device = rank.device();
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const auto made = [&](std::int64_t count, double most) {
    return numbers(device, config.datatype, count, most);
  };
  const std::int64_t batch = config.tokens * config.embedding;
  const std::int64_t matrix = shapes.localExperts * config.embedding * shapes.localHidden;
  const std::int64_t ofGate = config.embedding * config.experts;
  const DeviceElements tokens = made(batch, 1), output = made(batch, 1), slopes = made(batch, 1),
                       gate = made(ofGate, 0.05), w1 = made(matrix, 0.05), w2 = made(matrix, 0.05),
                       dGate = made(ofGate, 0), dW1 = made(matrix, 0), dW2 = made(matrix, 0);
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = gate.get(), weights.w1 = w1.get(), weights.w2 = w2.get();
  check(moecclMoeLayerSetWeights(layer, &weights));
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = dGate.get(), gradients.w1 = dW1.get(), gradients.w2 = dW2.get();
  check(moecclMoeLayerSetGradients(layer, &gradients));
  const auto forward = [&] {
    check(moecclMoeForward(layer, tokens.get(), output.get(), rank.stream()));
  };
  const auto both = [&] {
    forward();
    check(moecclMoeBackward(layer, slopes.get(), 0.01, output.get(), rank.stream()));
  };
  const int calls = rank.quick() ? 1 : 10, measurements = rank.quick() ? 1 : 9;
  const auto median = [&](const auto& call) {
    call();
    std::vector<double> times;
    for (int i = 0; i < measurements; ++i)
      times.push_back(device.milliseconds(rank.stream(), [&] {
        for (int j = 0; j < calls; ++j) call();
      }) / calls);
    std::ranges::nth_element(times, times.begin() + measurements / 2);
    return times[static_cast<std::size_t>(measurements) / 2];
  };
  const Milliseconds took{median(forward), median(both)};
  check(moecclMoeLayerDestroy(layer));
  return took;
}

RANKS_BENCH(layer) {
  if (rank.rank() == 0)
    std::printf("%-10s%-10s%8s%8s%8s%8s%4s%14s%14s\n", "type", "", "tokens", "M", "H", "E", "k",
                "forward, ms", "both, ms");
  const moecclGrid_t grid = rank.gridInTurn(0, {1, rank.ranks(), 1, moecclOrderEspEp});
  for (const Layer& layer : layersFor(rank)) {
    const moecclMoeConfig_t& config = layer.config;
    const std::string kind = config.dropless != 0 ? "dropless" : "S1";
    rank.step(layer.type + " " + kind, [&] {
      const Milliseconds took = measure(rank, grid, config);
      if (rank.rank() != 0) return;
      const auto number = [](std::int64_t value) { return static_cast<long long>(value); };
      std::printf("%-10s%-10s%8lld%8lld%8lld%8lld%4lld%14.3f%14.3f\n", layer.type.c_str(),
                  kind.c_str(), number(config.tokens), number(config.embedding),
                  number(config.hidden), number(config.experts), number(config.topK), took.forward,
                  took.both);
      std::fflush(stdout);
      record({{"layer", kind},
              {"type", layer.type},
              {"tokens", config.tokens},
              {"embedding", config.embedding},
              {"hidden", config.hidden},
              {"experts", config.experts},
              {"choices", config.topK},
              {"capacity_factor", config.capacityFactor},
              {"ranks", rank.ranks()},
              {"forward_ms", took.forward},
              {"both_ms", took.both}});
    });
  }
}

}  // namespace
}  // namespace moeccl::gpu
