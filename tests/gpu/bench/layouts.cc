// Times of tokens on their way to places, and of transposed blocks.
#include <utility>

#include "kernels/copy.h"
#include "kernels/permute.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

constexpr std::size_t kElement = 2;

// Tokens to the places of their choices, and back.
void places(Bench& bench, const Sizes& sizes) {
  // No structured binding: Clang 14 cannot use one in a lambda.
  const std::int64_t tokens = sizes.tokens, embedding = sizes.embedding;
  const std::int32_t experts = sizes.experts, choices = sizes.choices;
  const Routing routing(sizes);
  Device<std::int32_t> chosen(routing.experts);
  Device<std::int64_t> slots(routing.slots);
  Device<float> weights(routing.weights), weightGradients(routing.weights.size());
  const Choices<float> all{chosen.data(), slots.data(), weights.data(), tokens, choices};
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * kElement;
  const double moved = static_cast<double>((1 + choices) * tokens) * static_cast<double>(rowBytes);
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::uint16_t> input(turns, tokens * embedding);
  Turns<std::uint16_t> rows(turns, experts * routing.stride * embedding);
  bench.measure({"permute", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::scatterTokens(all, input.of(turn), rowBytes, routing.stride, rows.of(turn),
                                stream);
  });
  bench.measure({"un-permute", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::combineTokens(moecclBfloat16, all, rows.of(turn), embedding, routing.stride,
                                input.of(turn), stream);
  });
  if (tokens != bench.training()) return;
  bench.measure({"permute backward", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::scatterTokensBackward(moecclBfloat16, all, rows.of(turn), embedding,
                                        routing.stride, input.of(turn), stream);
  });
  Turns<std::uint16_t> gradients(turns, experts * routing.stride * embedding);
  const double all3 = moved + static_cast<double>(choices * tokens) * static_cast<double>(rowBytes);
  bench.measure({"un-permute backward", sizes, all3}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::combineTokensBackward(moecclBfloat16, all, rows.of(turn), input.of(turn),
                                        embedding, routing.stride, gradients.of(turn),
                                        weightGradients.data(), stream);
  });
}

// [peers][experts][tokens] to [experts][peers][tokens], which lies between two steps of an
// exchange, and back; and zeroes where places are unused, half of them.
void blocks(Bench& bench, const Sizes& sizes) {
  constexpr std::int32_t kPeers = 8;
  const std::int32_t local = sizes.experts / kPeers;
  const std::int64_t tokens = sizes.tokens / sizes.experts + 1;
  const std::size_t rowBytes = static_cast<std::size_t>(sizes.embedding) * kElement;
  const std::size_t block = static_cast<std::size_t>(tokens) * rowBytes;
  const std::int64_t all = sizes.experts * static_cast<std::int64_t>(block);
  const double moved = 2 * static_cast<double>(all);
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::byte> from(turns, all), to(turns, all);
  const auto rows = static_cast<std::ptrdiff_t>(block);
  std::vector<std::vector<BlockCopy>> packed(static_cast<std::size_t>(turns)), unpacked = packed;
  for (int turn = 0; turn < turns; ++turn)
    for (std::int64_t expert = 0; expert < local; ++expert) {
      const auto at = static_cast<std::size_t>(turn);
      std::byte* const byPeer = from.of(turn) + expert * rows;
      std::byte* const byExpert = to.of(turn) + expert * kPeers * rows;
      packed[at].push_back({byExpert, rows, byPeer, local * rows, block, kPeers});
      unpacked[at].push_back({byPeer, local * rows, byExpert, rows, block, kPeers});
    }
  for (const auto& [name, copies] : {std::pair{"pack", &packed}, std::pair{"unpack", &unpacked}})
    bench.measure({name, sizes, moved}, turns, [all = copies](int turn, cudaStream_t stream) {
      moeccl::cuda::copyBlocks((*all)[static_cast<std::size_t>(turn)], stream);
    });
  Device<std::int64_t> used(
      std::vector<std::int64_t>(static_cast<std::size_t>(local), kPeers * tokens / 2));
  bench.measure({"clear unused", sizes, moved / 4}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::clearUnused(used.data(), 1, local, kPeers * tokens, rowBytes, kPeers * tokens,
                              to.of(turn), stream);
  });
}

}  // namespace

void layouts(Bench& bench) {
  std::vector<std::int64_t> tokens = bench.tokens();
  if (!bench.quick()) tokens.push_back(4096);
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t count : tokens) {
      const Sizes sizes{count, bench.embedding(), experts, Bench::kChoices};
      places(bench, sizes);
      blocks(bench, sizes);
    }
}

}  // namespace moeccl::gpu
