// How many kernels a GPU is given for the work of a layer.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/blas_cuda.h"
#include "kernels/copy.h"
#include "kernels/expert.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/permute.h"
#include "tests/gpu/launch_counts.h"

namespace moeccl::emulation {
namespace {

template <typename T>
std::vector<T> room(std::int64_t count) {
  return std::vector<T>(static_cast<std::size_t>(count));
}

// What of it begins at a multiple of 256.
std::span<std::byte> aligned(std::vector<std::byte>& memory) {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t shift = (256 - at % 256) % 256;
  return std::span<std::byte>(memory.data() + shift, memory.size() - 256);
}

// What a rank of 8 does in a dropless forward pass with 256 experts, 32 of them its own: all but
// the exchanges.
TEST(Launches, OfADroplessForward) {
  constexpr std::int64_t kRanks = 8, kLocal = 32, kTokens = 96, kEmbedding = 8, kHidden = 16;
  constexpr std::int32_t kExperts = kRanks * kLocal, kChoices = 2;
  gates::Config config{
      gates::Kind::softmax, kTokens, kEmbedding, kExperts, kChoices, kTokens, kTokens};
  const cuda::Gate gate(config, moecclFloat32, kTokens, 1);
  std::vector<std::byte> workspace(
      std::max(gate.workspaceBytes(),
               cuda::listByExpertWorkspace(kTokens * kChoices, 1, kExperts)) +
      256);
  std::vector<float> input(kTokens * kEmbedding), weights(kEmbedding * kExperts);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 13) - 6;
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 17) - 8;
  auto logits = room<double>(kTokens * kExperts);
  auto sums = room<double>(gates::sumsSize(config));
  auto chosen = room<std::int32_t>(kTokens * kChoices);
  auto choiceWeights = room<float>(kTokens * kChoices);
  auto begins = room<std::int64_t>(kExperts + 1), listed = room<std::int64_t>(kTokens * kChoices);
  auto positions = room<std::int64_t>(kTokens * kChoices), counts = room<std::int64_t>(kExperts);
  auto rows = room<float>(kTokens * kChoices * kEmbedding), others = rows;
  const Choices<float> choices{chosen.data(), nullptr, choiceWeights.data(), kTokens, kChoices};

  std::int64_t before = launches(), sum = 0;
  const auto expectLaunches = [&](const char* call) {
    EXPECT_EQ(launches() - before, test::launchesOf(call)) << call;
    sum += launches() - before;
    before = launches();
  };
  gate.computeLogits({weights.data()}, {input.data(), kTokens, 0}, logits.data(), nullptr);
  expectLaunches("computing logits");
  const auto choose = [&](double* to) {
    gate.choose({weights.data()}, {input.data(), kTokens, 0},
                {logits.data(), chosen.data(), choiceWeights.data()}, to, aligned(workspace),
                nullptr);
  };
  choose(sums.data());
  expectLaunches("choosing experts");
  choose(nullptr);
  EXPECT_EQ(launches() - before, test::launchesOf("choosing experts alone"));
  before = launches();
  cuda::listByExpert(choices, 1, kExperts, begins.data(), listed.data(), positions.data(),
                     {counts.data(), kLocal, kLocal, sums.data() + kExperts}, aligned(workspace),
                     nullptr);
  expectLaunches("listing choices by expert");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(begins.back(), kTokens * kChoices);
  const cuda::GatheredRows gathered{listed, input.data(), rows.data()};
  cuda::gatherListed(kChoices, {&gathered, 1}, kEmbedding * sizeof(float), nullptr);
  expectLaunches("gathering tokens");

  // A run per rank and expert, to the expert and back; as if each rank had chosen so.
  std::vector<BlockCopy> there, back;
  std::vector<std::int64_t> expertBegins(kLocal + 1);
  const auto at = [](std::vector<float>& all, std::int64_t row) {
    return reinterpret_cast<std::byte*>(all.data() + row * kEmbedding);
  };
  std::int64_t row = 0;
  for (std::int64_t expert = 0; expert < kLocal; ++expert) {
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      const std::int64_t* const run = begins.data() + rank * kLocal + expert;
      const auto bytes = static_cast<std::size_t>(run[1] - run[0]) * kEmbedding * sizeof(float);
      there.push_back({at(others, row), 0, at(rows, run[0]), 0, bytes, 1});
      back.push_back({at(rows, run[0]), 0, at(others, row), 0, bytes, 1});
      row += run[1] - run[0];
    }
    expertBegins[expert + 1] = row;
  }
  cuda::copyBlocks(there, nullptr);
  const std::int64_t copies = launches() - before;
  EXPECT_LE(copies, std::ssize(there) / static_cast<std::int64_t>(cuda::kMostSingle) + 1);
  sum += copies;
  before = launches();
  std::vector<std::byte> blasMemory((1 << 20) + 256);
  cuda::Blas blas(aligned(blasMemory));
  const cuda::ExpertShape shape{moecclFloat32, Activation::gelu, kLocal, kEmbedding, kHidden};
  auto w1 = room<float>(kLocal * kEmbedding * kHidden), w2 = w1;
  auto b1 = room<float>(kLocal * kHidden), b2 = room<float>(kLocal * kEmbedding);
  std::vector<std::byte> hidden(cuda::expertWorkspace(shape, row) + 256);
  cuda::expertForward(shape, {w1.data(), b1.data(), w2.data(), b2.data()}, others.data(),
                      expertBegins, blas, aligned(hidden), others.data(), nullptr);
  // The emulated cuBLAS launches a product for each run of experts with equally many rows, the real
  // one a product.
  std::int64_t runs = 0;
  for (std::int64_t e = 0, last = 0; e < kLocal; ++e) {
    const std::int64_t count = expertBegins[e + 1] - expertBegins[e];
    runs += count > 0 && (e == 0 || count != last);
    last = count;
  }
  ASSERT_GT(runs, 1);
  before += 2 * (runs - 1);
  expectLaunches("experts");
  cuda::copyBlocks(back, nullptr);
  EXPECT_EQ(launches() - before, copies);
  sum += copies;
  before = launches();
  auto output = room<float>(kTokens * kEmbedding);
  cuda::addListed(moecclFloat32, choices, {positions.data(), 0, begins.back()}, rows.data(),
                  kEmbedding, output.data(), nullptr);
  expectLaunches("adding to tokens");
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  auto used = room<std::int64_t>(kExperts), slots = room<std::int64_t>(kTokens * kChoices);
  before = launches();
  gate.place(kTokens, 1, chosen.data(), choiceWeights.data(), used.data(), slots.data(), nullptr,
             sums.data(), aligned(workspace), nullptr);
  EXPECT_EQ(launches() - before, test::launchesOf("giving places"));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  RecordProperty("launches", std::to_string(sum));
  EXPECT_LE(sum, 60);
}

// In 16 bits, where gates and experts have most to do.
TEST(Launches, OfABackward) {
  constexpr std::int64_t kTokens = 96, kEmbedding = 8, kHidden = 16;
  constexpr std::int32_t kExperts = 32, kChoices = 2;
  constexpr std::int64_t kRows = kTokens * kChoices, kPlaces = kRows / kExperts;
  using Bits = std::uint16_t;
  std::vector<std::int32_t> chosen;
  std::vector<std::int64_t> slots, listed;
  for (std::int64_t at = 0; at < kRows; ++at) {
    chosen.push_back(static_cast<std::int32_t>(at % kExperts));
    slots.push_back(at / kExperts);
    listed.push_back(at);
  }
  const std::vector<float> weights(kRows, 0.5f);
  const Choices<float> choices{chosen.data(), slots.data(), weights.data(), kTokens, kChoices};
  auto tokens = room<Bits>(kTokens * kEmbedding), tokenGradients = tokens;
  auto rows = room<Bits>(kRows * kEmbedding), rowGradients = rows;
  auto weightGradients = room<Bits>(kRows);
  std::vector<std::byte> blasMemory((1 << 20) + 256);
  cuda::Blas blas(aligned(blasMemory));

  std::int64_t before = launches();
  const auto expectLaunches = [&](const char* call, std::int64_t ofEmulation = 0) {
    EXPECT_EQ(launches() - before - ofEmulation, test::launchesOf(call)) << call;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    before = launches();
  };
  cuda::addListedBackward(moecclBfloat16, choices, listed, rows.data(), tokens.data(), kEmbedding,
                          rowGradients.data(), weightGradients.data(), nullptr);
  expectLaunches("gathering gradients of tokens");
  cuda::gatherListedBackward(moecclBfloat16, choices, {listed.data(), 0, kRows},
                             rowGradients.data(), kEmbedding, tokenGradients.data(), nullptr);
  expectLaunches("adding to gradients of tokens");
  cuda::combineTokensBackward(moecclBfloat16, choices, rows.data(), tokens.data(), kEmbedding,
                              kPlaces, rowGradients.data(), weightGradients.data(), nullptr);
  expectLaunches("scattering gradients of tokens");
  cuda::scatterTokensBackward(moecclBfloat16, choices, rowGradients.data(), kEmbedding, kPlaces,
                              tokenGradients.data(), nullptr);
  expectLaunches("gathering gradients of tokens");

  const gates::Config config{
      gates::Kind::softmax, kTokens, kEmbedding, kExperts, kChoices, kTokens, kTokens};
  const cuda::Gate gate(config, moecclBfloat16, kTokens, 1);
  std::vector<std::byte> workspace(gate.workspaceBytes() + 256);
  auto matrix = room<Bits>(kEmbedding * kExperts), matrixGradients = matrix;
  auto logits = room<double>(kTokens * kExperts);
  auto sums = room<double>(gates::sumsSize(config)), dSums = sums;
  gate.loss(sums.data(), 1, dSums.data(), nullptr, nullptr);
  expectLaunches("computing a gate's loss");
  gate.backward({matrix.data()}, {tokens.data(), kTokens, 0}, logits.data(), chosen.data(),
                {slots.data(), weights.data(), nullptr}, weightGradients.data(), dSums.data(),
                {matrixGradients.data(), nullptr, tokenGradients.data()}, blas, aligned(workspace),
                nullptr);
  expectLaunches("differentiating a gate");

  // Experts have 5 and 7 rows in turns, which the emulated cuBLAS multiplies by a launch each.
  std::vector<std::int64_t> begins(kExperts + 1);
  for (std::int64_t e = 0; e < kExperts; ++e) begins[e + 1] = begins[e] + 5 + e % 2 * 2;
  ASSERT_EQ(begins.back(), kRows);
  const cuda::ExpertShape shape{moecclBfloat16, Activation::gelu, kExperts, kEmbedding, kHidden};
  auto w1 = room<Bits>(kExperts * kEmbedding * kHidden), w2 = w1, dW1 = w1, dW2 = w1;
  auto b1 = room<Bits>(kExperts * kHidden), b2 = room<Bits>(kExperts * kEmbedding);
  auto dB1 = b1, dB2 = b2;
  std::vector<std::byte> hidden(cuda::expertBackwardWorkspace(shape, kRows) + 256);
  cuda::expertBackward(shape, {w1.data(), b1.data(), w2.data(), b2.data()}, rows.data(),
                       rowGradients.data(), begins, blas, aligned(hidden),
                       {dW1.data(), dB1.data(), dW2.data(), dB2.data()}, rows.data(), nullptr);
  expectLaunches("experts backward", 5 * (kExperts - 1));
}

}  // namespace
}  // namespace moeccl::emulation
