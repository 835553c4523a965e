// Times of the lists that say which token goes where.
#include <numeric>
#include <span>

#include "kernels/permute.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

void measure(Bench& bench, const Sizes& sizes) {
  // No structured binding: Clang 14 cannot use one in a lambda.
  const std::int64_t tokens = sizes.tokens, embedding = sizes.embedding;
  const std::int32_t experts = sizes.experts, choices = sizes.choices;
  const std::int64_t entries = tokens * choices;
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * 2;
  const Routing routing(sizes);
  Device<std::int32_t> chosen(routing.experts);
  Device<float> weights(routing.weights), weightGradients(routing.weights.size());
  const Choices<float> all{chosen.data(), nullptr, weights.data(), tokens, choices};
  Device<std::int64_t> begins(static_cast<std::size_t>(experts) + 1), counts(begins.size()),
      listed(routing.experts.size()), positions(routing.experts.size());
  Device<std::byte> space(moeccl::cuda::listByExpertWorkspace(entries, 1, experts));
  bench.measure({"listing by expert", sizes, 20.0 * static_cast<double>(entries)}, 1,
                [&](int, cudaStream_t stream) {
                  moeccl::cuda::listByExpert(all, 1, experts, begins.data(), listed.data(),
                                             positions.data(), {counts.data(), experts, experts},
                                             {space.data(), space.size()}, stream);
                });
  const double moved = static_cast<double>(tokens + entries) * static_cast<double>(rowBytes);
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::uint16_t> input(turns, tokens * embedding), rows(turns, entries * embedding);
  const std::span<const std::int64_t> list(listed.data(), listed.size());
  const moeccl::cuda::ListedRows whole{positions.data(), 0, entries};
  bench.measure({"gathering listed rows", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    const moeccl::cuda::GatheredRows gathered{list, input.of(turn), rows.of(turn)};
    moeccl::cuda::gatherListed(choices, {&gathered, 1}, rowBytes, stream);
  });
  const double added = moved + static_cast<double>(tokens) * static_cast<double>(rowBytes);
  bench.measure({"adding listed rows", sizes, added}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::addListed(moecclBfloat16, all, whole, rows.of(turn), embedding, input.of(turn),
                            stream);
  });
  if (tokens != bench.training()) return;
  bench.measure({"gathering backward", sizes, added}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::gatherListedBackward(moecclBfloat16, all, whole, rows.of(turn), embedding,
                                       input.of(turn), stream);
  });
  Turns<std::uint16_t> gradients(turns, entries * embedding);
  const double both = moved + static_cast<double>(entries) * static_cast<double>(rowBytes);
  bench.measure({"adding backward", sizes, both}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::addListedBackward(moecclBfloat16, all, list, rows.of(turn), input.of(turn),
                                    embedding, gradients.of(turn), weightGradients.data(), stream);
  });
}

}  // namespace

void lists(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.tokens())
      measure(bench, {tokens, bench.embedding(), experts, Bench::kChoices});
}

}  // namespace moeccl::gpu
