// Times the kernels of a GPU:
//
//     bench_gpu layouts                                  beside copies by cudaMemcpy
//     bench_gpu gate TOKENS EMBEDDING EXPERTS CHOICES    milliseconds, for gate_bench.py
#include "tests/gpu/bench.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "kernels/copy.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/permute.h"
#include "tests/gpu/measurement.h"

namespace moeccl::gpu {
namespace {

std::byte* bytesOf(void* at) { return static_cast<std::byte*>(at); }

// `bytes`: read and written. The copy that it is measured against moves as many.
template <typename Function>
void row(const char* kernel, const char* type, std::int64_t tokens, std::int64_t embedding,
         std::size_t bytes, Device<std::byte>& from, Device<std::byte>& to, Function work) {
  const double ours = milliseconds(work);
  const double copy = milliseconds([&] {
    cudaMemcpyAsync(to.data(), from.data(), bytes / 2, cudaMemcpyDeviceToDevice, nullptr);
  });
  const auto rate = [&](double ms) { return static_cast<double>(bytes) / ms * 1e-6; };
  std::printf("%-22s%-10s%8lld%8lld%12.1f%12.1f%8.0f %%\n", kernel, type,
              static_cast<long long>(tokens), static_cast<long long>(embedding), rate(ours),
              rate(copy), 100 * copy / ours);
  std::fflush(stdout);
  record({{"kernel", kernel},
          {"type", type},
          {"tokens", tokens},
          {"embedding", embedding},
          {"gb_per_s", rate(ours)},
          {"memcpy_gb_per_s", rate(copy)}});
}

// Choices with a place each, at random: tokens x choices places, evenly over the experts.
struct Places {
  std::vector<std::int32_t> experts;
  std::vector<std::int64_t> slots;
  std::vector<float> weights;

  Places(std::int64_t tokens, std::int32_t choices, std::int32_t expertCount) {
    std::vector<std::int64_t> order(tokens * choices);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), Random(1));
    const std::int64_t each = std::ssize(order) / expertCount;
    for (std::int64_t place : order) {
      experts.push_back(static_cast<std::int32_t>(place / each));
      slots.push_back(place % each);
      weights.push_back(0.5f);
    }
  }
};

void layoutsOf(moecclDataType_t datatype, const char* type, std::size_t size, std::int64_t tokens,
               std::int64_t embedding) {
  constexpr std::int32_t kExperts = 64, kMost = 2;
  const std::size_t rowBytes = embedding * size;
  // The copies in comparison move up to half of a token's row more than the rows there are.
  Device<std::byte> input(tokens * rowBytes), rows(tokens * (kMost + 1) * rowBytes);
  Device<std::byte> other(rows.size());
  // [peers][experts][tokens] to [experts][peers][tokens]: what lies between two steps of an
  // exchange.
  constexpr std::int64_t kPeers = 8, kLocal = 8;
  const std::size_t block = tokens / (kPeers * kLocal) * rowBytes;
  std::vector<BlockCopy> copies;
  for (std::int64_t expert = 0; expert < kLocal; ++expert)
    copies.push_back({bytesOf(rows.data()) + expert * kPeers * block,
                      static_cast<std::ptrdiff_t>(block), bytesOf(input.data()) + expert * block,
                      static_cast<std::ptrdiff_t>(kLocal * block), block, kPeers});
  row("pack", type, tokens, embedding, 2 * tokens * rowBytes, rows, other,
      [&] { moeccl::cuda::copyBlocks(copies, nullptr); });
  for (BlockCopy& copy : copies) {
    const BlockCopy back{bytesOf(input.data()) + (copy.src - input.data()),
                         copy.srcStride,
                         copy.dst,
                         copy.dstStride,
                         copy.bytes,
                         copy.count};
    copy = back;
  }
  row("unpack", type, tokens, embedding, 2 * tokens * rowBytes, rows, other,
      [&] { moeccl::cuda::copyBlocks(copies, nullptr); });
  // Half of the places of few experts are unused: what is written is what is copied to.
  constexpr std::int32_t kFew = 8;
  Device<std::int64_t> used(std::vector<std::int64_t>(kFew, tokens / kFew));
  row("clear unused", type, tokens, embedding, tokens * rowBytes, rows, other, [&] {
    moeccl::cuda::clearUnused(used.data(), 1, kFew, 2 * (tokens / kFew), rowBytes,
                              2 * (tokens / kFew), rows.data(), nullptr);
  });
  for (std::int32_t choices : {1, 2}) {
    const Places places(tokens, choices, kExperts);
    Device<std::int32_t> experts(places.experts);
    Device<std::int64_t> slots(places.slots);
    Device<float> weights(places.weights), weightGradients(places.weights.size());
    const Choices<float> all{experts.data(), slots.data(), weights.data(), tokens, choices};
    const std::int64_t stride = tokens * choices / kExperts;
    const std::string one = choices == 1 ? " k=1" : " k=2";
    const std::size_t moved = (1 + choices) * tokens * rowBytes;
    row(("permute" + one).c_str(), type, tokens, embedding, moved, rows, other, [&] {
      moeccl::cuda::scatterTokens(all, input.data(), rowBytes, stride, rows.data(), nullptr);
    });
    row(("un-permute" + one).c_str(), type, tokens, embedding, moved, rows, other, [&] {
      moeccl::cuda::combineTokens(datatype, all, rows.data(), embedding, stride, input.data(),
                                  nullptr);
    });
    row(("permute back" + one).c_str(), type, tokens, embedding, moved, rows, other, [&] {
      moeccl::cuda::scatterTokensBackward(datatype, all, rows.data(), embedding, stride,
                                          input.data(), nullptr);
    });
    row(("un-permute back" + one).c_str(), type, tokens, embedding,
        (1 + 2 * choices) * tokens * rowBytes, rows, other, [&] {
          moeccl::cuda::combineTokensBackward(datatype, all, rows.data(), input.data(), embedding,
                                              stride, other.data(), weightGradients.data(),
                                              nullptr);
        });
  }
}

void layouts() {
  std::printf("GB/s of the bytes read and written\n%-22s%-10s%8s%8s%12s%12s%10s\n", "kernel",
              "type", "tokens", "M", "kernel", "cudaMemcpy", "ratio");
  // What lies in a cache of level 2 would be measured instead of memory: each call moves some times
  // as much.
  constexpr std::int64_t kTokens = 32768;
  for (std::int64_t embedding : {4096, 7168, 8192}) {
    layoutsOf(moecclBfloat16, "bfloat16", 2, kTokens, embedding);
    layoutsOf(moecclFloat32, "float32", 4, kTokens, embedding);
  }
}

void gate(std::int64_t tokens, std::int64_t embedding, std::int32_t experts, std::int32_t choices) {
  gates::Config config{gates::Kind::softmax, tokens, embedding, experts, choices};
  config.capacityTokens = tokens;
  config.capacitySlots = (tokens * choices + experts - 1) / experts;
  Random random(1);
  const auto numbers = [&](std::int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
    return values;
  };
  const moeccl::cuda::Gate gate(config, moecclFloat32, tokens, 1);
  Device<std::byte> memory(gate.workspaceBytes());
  Device<float> input(numbers(tokens * embedding)), weights(numbers(embedding * experts));
  Device<double> logits(tokens * experts), sums(std::vector<double>(sumsSize(config)));
  Device<std::int32_t> chosen(tokens * choices);
  Device<float> choiceWeights(tokens * choices);
  Device<std::int64_t> used(experts), slots(tokens * choices);
  Device<double> dSums(sumsSize(config)), loss(1);
  const gates::Parameters<void> parameters{weights.data()};
  const gates::Part<void> part{input.data(), tokens, 0};
  const std::span<std::byte> space(memory.data(), memory.size());
  const double product =
      milliseconds([&] { gate.computeLogits(parameters, part, logits.data(), nullptr); });
  const double rest = milliseconds([&] {
    cudaMemsetAsync(sums.data(), 0, sums.size() * sizeof(double), nullptr);
    gate.choose(parameters, part, {logits.data(), chosen.data(), choiceWeights.data()}, sums.data(),
                space, nullptr);
    gate.place(tokens, 1, chosen.data(), choiceWeights.data(), used.data(), slots.data(), nullptr,
               sums.data(), space, nullptr);
    gate.loss(sums.data(), 1, dSums.data(), loss.data(), nullptr);
  });
  std::printf("%.6f %.6f\n", product, rest);
}

}  // namespace
}  // namespace moeccl::gpu

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "layouts" && argc == 2)
      moeccl::gpu::layouts();
    else if (what == "gate" && argc == 6)
      moeccl::gpu::gate(std::atoll(argv[2]), std::atoll(argv[3]), std::atoi(argv[4]),
                        std::atoi(argv[5]));
    else
      return std::fprintf(stderr,
                          "usage: bench_gpu layouts | gate TOKENS EMBEDDING EXPERTS CHOICES\n"),
             2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return 1;
  }
}
