// Times of experts' matrix products.
#include <algorithm>
#include <span>
#include <string>

#include "kernels/blas_cuda.h"
#include "kernels/expert.h"
#include "tests/gpu/bench/benches.h"

namespace moeccl::gpu {
namespace {

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

// Where each expert's rows begin. Experts have 3, 4 and 5 twelfths of three in turns, as
// kernel_bench.py gives them to PyTorch.
std::vector<std::int64_t> beginsOf(std::int64_t rows, std::int32_t experts) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(experts) + 1);
  for (std::size_t expert = 1; expert < begins.size(); ++expert)
    begins[expert] = begins[expert - 1] + 3 + static_cast<std::int64_t>(expert - 1) % 3;
  const std::int64_t all = begins.back();
  for (std::int64_t& begin : begins) begin = begin * rows / all;
  return begins;
}

void measure(Bench& bench, const Sizes& sizes, std::int64_t hidden) {
  const std::int64_t rows = sizes.tokens * sizes.choices, embedding = sizes.embedding;
  const std::vector<std::int64_t> begins = beginsOf(rows, sizes.experts);
  const std::int64_t matrix = embedding * hidden;
  std::int64_t busy = 0;
  std::vector<moeccl::cuda::Product> products;
  Device<std::byte> blasMemory(kBlasBytes);
  moeccl::cuda::Blas blas({blasMemory.data(), blasMemory.size()});
  Turns<std::uint16_t> input(1, rows * embedding), between(1, rows * hidden),
      w1(1, sizes.experts * matrix), w2(1, sizes.experts * matrix), output(1, rows * embedding);
  for (std::size_t e = 0; e < begins.size() - 1; ++e) {
    const std::int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    ++busy;
    products.push_back({.rows = count,
                        .columns = hidden,
                        .inner = embedding,
                        .a = input.of(0) + begins[e] * embedding,
                        .b = w1.of(0) + static_cast<std::int64_t>(e) * matrix,
                        .c = between.of(0) + begins[e] * hidden});
  }
  const double flops = 2 * static_cast<double>(rows) * static_cast<double>(matrix);
  const double bytes = 2 * static_cast<double>(rows * (embedding + hidden) + busy * matrix);
  bench.measure({"expert product", sizes, bytes, flops, false}, 1,
                [&](int, cudaStream_t stream) { blas.multiply(moecclBfloat16, products, stream); });
  const moeccl::cuda::ExpertShape shape{moecclBfloat16, Activation::gelu, sizes.experts, embedding,
                                        hidden};
  Device<std::byte> space(std::max(moeccl::cuda::expertWorkspace(shape, rows),
                                   moeccl::cuda::expertBackwardWorkspace(shape, rows)));
  const std::span<std::byte> workspace(space.data(), space.size());
  Turns<std::uint16_t> b1(1, sizes.experts * hidden), b2(1, sizes.experts * embedding);
  Turns<std::uint16_t> db1(1, sizes.experts * hidden), db2(1, sizes.experts * embedding);
  const bool trains = sizes.tokens == bench.training();
  const std::int64_t gradients = trains ? sizes.experts * matrix : 0;
  Turns<std::uint16_t> dw1(1, gradients), dw2(1, gradients);
  Turns<std::uint16_t> gradient(1, trains ? rows * embedding : 0);
  for (const bool biased : {false, true}) {
    const std::string with = biased ? ", biases" : "";
    const moeccl::cuda::StackedWeights weights{w1.of(0), biased ? b1.of(0) : nullptr, w2.of(0),
                                               biased ? b2.of(0) : nullptr};
    bench.measure({"experts" + with, sizes, 2 * bytes, 2 * flops, false}, 1,
                  [&](int, cudaStream_t stream) {
                    moeccl::cuda::expertForward(shape, weights, input.of(0), begins, blas,
                                                workspace, output.of(0), stream);
                  });
    if (!trains) continue;
    const moeccl::cuda::StackedGradients wanted{dw1.of(0), biased ? db1.of(0) : nullptr, dw2.of(0),
                                                biased ? db2.of(0) : nullptr};
    bench.measure({"experts backward" + with, sizes, 4 * bytes, 4 * flops, false}, 1,
                  [&](int, cudaStream_t stream) {
                    moeccl::cuda::expertBackward(shape, weights, input.of(0), output.of(0), begins,
                                                 blas, workspace, wanted, gradient.of(0), stream);
                  });
  }
}

}  // namespace

void experts(Bench& bench) {
  for (const std::int32_t experts : bench.experts())
    for (const std::int64_t tokens : bench.tokens())
      measure(bench, {tokens, bench.embedding(), experts, Bench::kChoices},
              bench.quick() ? 32 : 2048);
}

}  // namespace moeccl::gpu
