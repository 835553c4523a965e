// Experts on a GPU give the CPU's results.
#include "kernels/expert.h"

#include <numeric>

#include "kernels/blas_cuda.h"
#include "kernels/reduce_ops.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

// Values that every format holds.
template <typename Format>
std::vector<float> values(Random& random, std::size_t count, float most) {
  std::vector<float> made(count);
  for (float& value : made)
    value =
        Format::decode(Format::encode(std::uniform_real_distribution<float>(-most, most)(random)));
  return made;
}

// Numbers of which all sums are exact; none of them and `beside` is 0 where that is a half.
std::vector<float> wholeNumbers(Random& random, std::size_t count, float beside = 0) {
  std::vector<float> made(count);
  for (float& value : made) value = static_cast<float>(random() % 3) - 1 + beside;
  return made;
}

template <typename Format>
std::vector<typename Format::Bits> bits(const std::vector<float>& values) {
  std::vector<typename Format::Bits> made;
  for (float value : values) made.push_back(Format::encode(value));
  return made;
}

template <typename Format>
void expectNear(const Device<typename Format::Bits>& device, const std::vector<float>& expected,
                double tolerance, const std::string& what) {
  std::vector<float> values;
  for (auto element : device.get(what)) values.push_back(Format::decode(element));
  expectClose(values, expected, tolerance, what);
}

struct Width {
  std::int64_t embedding = 48, hidden = 40;
  std::size_t shift = 0;  // elements behind an aligned address
};

template <typename Format>
void compare(Random& random, moecclDataType_t datatype, Activation activation, bool biased,
             const std::vector<std::int64_t>& rows, double tolerance, const Width& width = {}) {
  using Bits = typename Format::Bits;
  const auto experts = static_cast<std::int64_t>(rows.size());
  const std::int64_t embedding = width.embedding, hidden = width.hidden;
  const std::size_t shift = width.shift * sizeof(Bits);
  std::vector<std::int64_t> begins(experts + 1);
  std::partial_sum(rows.begin(), rows.end(), begins.begin() + 1);
  const std::int64_t all = begins.back();
  // Rounding must not choose the side of ReLU's step.
  const auto made = [&](std::size_t count, float most, float beside = 0) {
    return activation == Activation::relu ? wholeNumbers(random, count, beside)
                                          : values<Format>(random, count, most);
  };
  const auto w1 = made(experts * embedding * hidden, 0.3f);
  const auto w2 = made(experts * embedding * hidden, 0.3f);
  const auto b1 = made(experts * hidden, 1, 0.5f);
  const auto b2 = made(experts * embedding, 1);
  const auto input = made(all * embedding, 1);
  const auto gradient = made(all * embedding, 1);

  std::vector<float> output(input.size()), dInput(input.size()), dW1(w1.size(), 0.5f),
      dB1(b1.size()), dW2(w2.size()), dB2(b2.size());
  std::vector<float> space(expertBackwardWorkspace(hidden));
  for (std::int64_t e = 0; e < experts; ++e) {
    const ExpertWeights<float> weights{
        &w1[e * embedding * hidden], biased ? &b1[e * hidden] : nullptr,
        &w2[e * embedding * hidden], biased ? &b2[e * embedding] : nullptr};
    const std::int64_t first = begins[e] * embedding;
    expertForward<float>(activation, weights, embedding, hidden, input.data() + first, rows[e],
                         space, output.data() + first);
    expertBackward<float>(activation, weights, embedding, hidden, input.data() + first,
                          gradient.data() + first, rows[e], space,
                          {&dW1[e * embedding * hidden], &dB1[e * hidden],
                           &dW2[e * embedding * hidden], &dB2[e * embedding]},
                          dInput.data() + first);
  }

  const moeccl::cuda::ExpertShape shape{datatype, activation, experts, embedding, hidden};
  Device<Bits> dw1(bits<Format>(w1), shift), dw2(bits<Format>(w2), shift),
      db1(bits<Format>(b1), shift), db2(bits<Format>(b2), shift);
  Device<Bits> in(bits<Format>(input), shift), out(input.size(), shift),
      given(bits<Format>(gradient), shift), inGradient(input.size(), shift);
  Device<Bits> gw1(bits<Format>(std::vector<float>(w1.size(), 0.5f)), shift),
      gb1(std::vector<Bits>(b1.size()), shift), gw2(std::vector<Bits>(w2.size()), shift),
      gb2(std::vector<Bits>(b2.size()), shift);
  Device<std::byte> blasSpace(kBlasBytes),
      workspace(moeccl::cuda::expertBackwardWorkspace(shape, all));
  moeccl::cuda::Blas blas({blasSpace.data(), blasSpace.size()});
  const moeccl::cuda::StackedWeights weights{dw1.data(), biased ? db1.data() : nullptr, dw2.data(),
                                             biased ? db2.data() : nullptr};
  moeccl::cuda::expertForward(shape, weights, in.data(), begins, blas,
                              {workspace.data(), workspace.size()}, out.data(), nullptr);
  moeccl::cuda::expertBackward(
      shape, weights, in.data(), given.data(), begins, blas, {workspace.data(), workspace.size()},
      {gw1.data(), gb1.data(), gw2.data(), gb2.data()}, inGradient.data(), nullptr);
  workspace.get("experts");
  const std::string what = "type " + std::to_string(datatype) + ", " + std::to_string(experts) +
                           " experts of " + std::to_string(embedding) + " x " +
                           std::to_string(hidden) + ", " + std::to_string(all) + " rows, shifted " +
                           std::to_string(shift) + " bytes: ";
  expectNear<Format>(out, output, tolerance, what + "output");
  expectNear<Format>(inGradient, dInput, tolerance, what + "gradient of the input");
  // Sums over rows, of values rounded before.
  const double sums = tolerance * (1 + std::sqrt(static_cast<double>(all)));
  expectNear<Format>(gw1, dW1, sums, what + "gradient of w1");
  expectNear<Format>(gb1, dB1, sums, what + "gradient of b1");
  expectNear<Format>(gw2, dW2, sums, what + "gradient of w2");
  expectNear<Format>(gb2, dB2, sums, what + "gradient of b2");
}

GPU_TEST(expertsComputeAsTheCpuDoes) {
  const std::vector<std::vector<std::int64_t>> rows = {
      {0}, {1}, {64, 64, 64}, {5, 0, 31, 31, 2}, {0, 0}};
  for (const auto& each : rows)
    for (Activation activation : {Activation::gelu, Activation::relu})
      for (bool biased : {true, false}) {
        compare<Unchanged<float>>(random, moecclFloat32, activation, biased, each, 2e-5);
        compare<Float16>(random, moecclFloat16, activation, biased, each, 1e-2);
        compare<Bfloat16>(random, moecclBfloat16, activation, biased, each, 6e-2);
      }
}

// Sizes that vectors do not divide, and addresses that they may not begin at.
GPU_TEST(expertsOfOddSizes) {
  const std::vector<std::int64_t> rows = {3, 0, 7, 7, 1};
  for (const Width& width : {Width{1, 1, 0},
                             {33, 17, 0},
                             {33, 17, 1},
                             {48, 40, 1},
                             {8, 129, 3},
                             {static_cast<std::int64_t>(random() % 90 + 1),
                              static_cast<std::int64_t>(random() % 90 + 1), random() % 8}})
    for (Activation activation : {Activation::gelu, Activation::relu}) {
      compare<Unchanged<float>>(random, moecclFloat32, activation, true, rows, 2e-5, width);
      compare<Float16>(random, moecclFloat16, activation, true, rows, 1e-2, width);
      compare<Bfloat16>(random, moecclBfloat16, activation, true, rows, 6e-2, width);
    }
}

// More than one launch takes.
GPU_TEST(veryManyExperts) {
  std::vector<std::int64_t> rows(400);
  for (std::size_t e = 0; e < rows.size(); ++e) rows[e] = static_cast<std::int64_t>(e % 3);
  compare<Unchanged<float>>(random, moecclFloat32, Activation::relu, true, rows, 2e-5);
}

}  // namespace
}  // namespace moeccl::gpu
