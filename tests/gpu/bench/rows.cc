// Times of rows that are copied, added up and converted.
#include "kernels/narrow.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/row_lists.h"
#include "kernels/weigh.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

constexpr std::size_t kElement = 2;

std::byte* bytesOf(std::uint16_t* rows) { return reinterpret_cast<std::byte*>(rows); }

// Rows of float8, and conversions to float32, as where gradients of gates are added up.
void conversions(Bench& bench, const Sizes& sizes) {
  const auto elements = static_cast<std::size_t>(sizes.embedding);
  const auto count = static_cast<std::size_t>(sizes.tokens);
  const std::int64_t numbers = sizes.tokens * sizes.embedding;
  const double narrow = static_cast<double>(numbers) * kElement;
  const double moved = narrow + static_cast<double>(count * quantisedBytes(elements));
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::uint16_t> rows(turns, numbers);
  Turns<std::byte> quantised(turns, static_cast<std::int64_t>(count * quantisedBytes(elements)));
  bench.measure({"quantise", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::quantise(moecclFloat8e4m3, moecclBfloat16, bytesOf(rows.of(turn)), count,
                           elements, quantised.of(turn), stream);
  });
  bench.measure({"dequantise", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::dequantise(moecclFloat8e4m3, moecclBfloat16, quantised.of(turn), count, elements,
                             bytesOf(rows.of(turn)), stream);
  });
  if (sizes.tokens != bench.training()) return;
  Turns<float> wide(1, numbers);
  bench.measure({"widening", sizes, 3 * narrow}, 1, [&](int, cudaStream_t stream) {
    moeccl::cuda::widen(moecclBfloat16, rows.of(0), numbers, wide.of(0), stream);
  });
  bench.measure({"adding narrowed", sizes, 4 * narrow}, 1, [&](int, cudaStream_t stream) {
    moeccl::cuda::addNarrowed(moecclBfloat16, wide.of(0), numbers, rows.of(0), stream);
  });
}

// Each token's row to its choices and their sum back, by lists.
void byLists(Bench& bench, const Sizes& sizes) {
  // No structured binding: Clang 14 cannot use one in a lambda.
  const std::int64_t tokens = sizes.tokens, embedding = sizes.embedding;
  const std::int32_t choices = sizes.choices;
  const std::int64_t entries = tokens * choices;
  std::vector<RowAt> from, to, sums;
  std::vector<std::int32_t> begins;
  for (std::int32_t entry = 0; entry < entries; ++entry) {
    from.push_back({0, entry / choices});
    to.push_back({1, entry});
    if (entry % choices != 0) continue;
    begins.push_back(entry);
    sums.push_back({2, entry / choices});
  }
  begins.push_back(static_cast<std::int32_t>(entries));
  Device<RowAt> sources(from), targets(to), sumsAt(sums);
  Device<std::int32_t> firsts(begins);
  Device<float> weights(std::vector<float>(to.size(), 1)), ofWeights(to.size());
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * kElement;
  const double moved = static_cast<double>(tokens + entries) * static_cast<double>(rowBytes);
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::uint16_t> input(turns, tokens * embedding), rows(turns, entries * embedding),
      output(turns, tokens * embedding);
  const auto matrices = [&](int turn) {
    return RowMatrices{{bytesOf(input.of(turn)), bytesOf(rows.of(turn)), bytesOf(output.of(turn))},
                       rowBytes};
  };
  bench.measure({"copying rows by lists", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::copyRows(matrices(turn), {sources.data(), targets.data(), entries}, stream);
  });
  RowWeights ofRows;
  ofRows.of[1] = weights.data();
  ofRows.counts[1] = entries;
  bench.measure({"adding rows by lists", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::addRows(moecclBfloat16, matrices(turn),
                          {firsts.data(), targets.data(), sumsAt.data(), tokens}, ofRows, stream);
  });
  if (tokens != bench.training()) return;
  Turns<std::uint16_t> gradients(turns, entries * embedding);
  const double weighed = 3 * static_cast<double>(entries) * static_cast<double>(rowBytes);
  bench.measure({"weighing gradients", sizes, weighed}, turns, [&](int turn, cudaStream_t stream) {
    moeccl::cuda::weighGradients({moecclBfloat16, bytesOf(gradients.of(turn)),
                                  bytesOf(rows.of(turn)), rowBytes, weights.data(), entries},
                                 ofWeights.data(), stream);
  });
}

// The sums of an all-reduce of 8 ranks.
void reductions(Bench& bench, const Sizes& sizes) {
  constexpr std::size_t kTerms = 8;
  const std::int64_t numbers = sizes.tokens * sizes.embedding;
  const std::size_t bytes = static_cast<std::size_t>(numbers) * kElement;
  const double moved = (1 + kTerms) * static_cast<double>(bytes);
  const int turns = bench.turnsOf(static_cast<std::size_t>(moved));
  Turns<std::uint16_t> terms(turns, static_cast<std::int64_t>(kTerms) * numbers),
      sum(turns, numbers);
  bench.measure({"adding 8 terms", sizes, moved}, turns, [&](int turn, cudaStream_t stream) {
    std::vector<const std::byte*> sources;
    for (std::size_t term = 0; term < kTerms; ++term)
      sources.push_back(bytesOf(terms.of(turn)) + term * bytes);
    moeccl::cuda::reduce(moecclSum, moecclBfloat16, bytesOf(sum.of(turn)), sources.data(), 1,
                         kTerms, bytes, stream);
  });
}

}  // namespace

void rows(Bench& bench) {
  for (const std::int64_t tokens : bench.tokens()) {
    const Sizes sizes{tokens, bench.embedding(), 0, Bench::kChoices};
    conversions(bench, sizes);
    byLists(bench, sizes);
    reductions(bench, sizes);
  }
}

}  // namespace moeccl::gpu
