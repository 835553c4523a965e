#include "kernels/activation_device.h"
#include "kernels/blas_cuda.h"
#include "kernels/expert.h"
#include "kernels/launch_cuda.h"
#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "src/text.h"

namespace moeccl::cuda {
namespace {

// Neighbouring experts with equally many rows each.
struct Run {
  std::int64_t firstExpert, experts, firstRow, rows;
};

template <typename Bits>
struct Values {
  Bits* values;
  const Bits* bias;  // [experts][width] or null
  std::int64_t expertRows, width, count;

  template <typename Format>
  __device__ float biased(std::int64_t at) const {
    const float value = Format::decode(values[at]);
    if (bias == nullptr) return value;
    const std::int64_t row = at / width;
    return value + Format::decode(bias[row / expertRows * width + (at - row * width)]);
  }
};

template <typename Format, typename Function>
__global__ void __launch_bounds__(kThreads) biasKernel(Values<typename Format::Bits> what) {
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < what.count;
       at += std::int64_t{gridDim.x} * kThreads)
    what.values[at] = Format::encode(Function::of(what.template biased<Format>(at)));
}

// values = of(values + bias), and gradients *= slope(values + bias).
template <typename Format, typename Function>
__global__ void __launch_bounds__(kThreads)
    slopeKernel(Values<typename Format::Bits> what, typename Format::Bits* gradients) {
  for (std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; at < what.count;
       at += std::int64_t{gridDim.x} * kThreads) {
    const float x = what.template biased<Format>(at);
    gradients[at] = Format::encode(Format::decode(gradients[at]) * Function::slope(x));
    what.values[at] = Format::encode(Function::of(x));
  }
}

// sums [experts][width] += the rows of each expert: a block for 32 columns of one, in one order.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    addRowsKernel(const typename Format::Bits* values, std::int64_t expertRows, std::int64_t width,
                  typename Format::Bits* sums) {
  constexpr int kColumns = 32, kParts = kThreads / kColumns;
  __shared__ float parts[kParts][kColumns];
  const int part = static_cast<int>(threadIdx.x) / kColumns, lane = threadIdx.x % kColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + lane, expert = blockIdx.y;
  float sum = 0;
  for (std::int64_t row = part; column < width && row < expertRows; row += kParts)
    sum += Format::decode(values[(expert * expertRows + row) * width + column]);
  parts[part][lane] = sum;
  __syncthreads();
  if (part > 0 || column >= width) return;
  float total = Format::decode(sums[expert * width + column]);
  for (int i = 0; i < kParts; ++i) total += parts[i][lane];
  sums[expert * width + column] = Format::encode(total);
}

// All that is done for one format.
template <typename Format>
struct Experts {
  using Bits = typename Format::Bits;
  const ExpertShape& shape;
  Blas& blas;
  void* stream;

  static unsigned grid(std::int64_t count) { return gridOf((count - 1) / kThreads + 1); }

  template <typename Function>
  void withActivation(Function function) const {
    if (shape.activation == Activation::gelu)
      function(Gelu{});
    else
      function(Relu{});
  }

  // Row-major products of each expert of a run, of matrices of its rows and matrices of its weights.
  void product(const Run& run, Transpose transpose, std::int64_t columns, std::int64_t inner,
               const Bits* rowsIn, const Bits* weights, Bits* rowsOut) const {
    blas.multiply(shape.datatype,
                  {.transpose = transpose,
                   .rows = run.rows,
                   .columns = columns,
                   .inner = inner,
                   .a = rowsIn + run.firstRow * inner,
                   .b = weights + run.firstExpert * columns * inner,
                   .c = rowsOut + run.firstRow * columns,
                   .count = run.experts,
                   .apartA = run.rows * inner,
                   .apartB = columns * inner,
                   .apartC = run.rows * columns},
                  stream);
  }
  // weights [rows][columns] += a^T b over the rows of each expert.
  void weightGradient(const Run& run, std::int64_t rows, std::int64_t columns, const Bits* a,
                      const Bits* b, Bits* weights) const {
    if (weights == nullptr) return;
    blas.multiply(shape.datatype,
                  {.transpose = Transpose::first,
                   .rows = rows,
                   .columns = columns,
                   .inner = run.rows,
                   .a = a + run.firstRow * rows,
                   .b = b + run.firstRow * columns,
                   .c = weights + run.firstExpert * rows * columns,
                   .adds = true,
                   .count = run.experts,
                   .apartA = run.rows * rows,
                   .apartB = run.rows * columns,
                   .apartC = rows * columns},
                  stream);
  }
  Values<Bits> values(const Run& run, std::int64_t width, Bits* all, const Bits* bias) const {
    return {all + run.firstRow * width, bias == nullptr ? nullptr : bias + run.firstExpert * width,
            run.rows, width, run.experts * run.rows * width};
  }
  template <typename Function>
  void addBias(const Values<Bits>& what) const {
    launchKernel("adding a bias", biasKernel<Format, Function>, grid(what.count), kThreads, stream,
                 what);
  }
  void biasGradient(const Run& run, std::int64_t width, const Bits* rows, Bits* sums) const {
    if (sums == nullptr) return;
    const dim3 blocks(gridOf((width - 1) / 32 + 1), gridOf(run.experts));
    launchKernel("adding rows", addRowsKernel<Format>, blocks, kThreads, stream,
                 rows + run.firstRow * width, run.rows, width, sums + run.firstExpert * width);
  }

  void forward(const Run& run, const StackedWeights& weights, const Bits* input, Bits* hidden,
               Bits* output) const {
    product(run, Transpose::none, shape.hidden, shape.embedding, input, at(weights.w1), hidden);
    withActivation([&]<typename Function>(Function) {
      addBias<Function>(values(run, shape.hidden, hidden, at(weights.b1)));
    });
    product(run, Transpose::none, shape.embedding, shape.hidden, hidden, at(weights.w2), output);
    if (weights.b2 != nullptr)
      addBias<Identity>(values(run, shape.embedding, output, at(weights.b2)));
  }

  void backward(const Run& run, const StackedWeights& weights, const Bits* input,
                const Bits* outputGradient, Bits* hidden, Bits* hiddenGradient,
                const StackedGradients& gradients, Bits* inputGradient) const {
    product(run, Transpose::none, shape.hidden, shape.embedding, input, at(weights.w1), hidden);
    product(run, Transpose::second, shape.hidden, shape.embedding, outputGradient, at(weights.w2),
            hiddenGradient);
    withActivation([&]<typename Function>(Function) {
      const Values<Bits> what = values(run, shape.hidden, hidden, at(weights.b1));
      launchKernel("differentiating an activation", slopeKernel<Format, Function>, grid(what.count),
                   kThreads, stream, what, hiddenGradient + run.firstRow * shape.hidden);
    });
    weightGradient(run, shape.hidden, shape.embedding, hidden, outputGradient, at(gradients.w2));
    biasGradient(run, shape.embedding, outputGradient, at(gradients.b2));
    weightGradient(run, shape.embedding, shape.hidden, input, hiddenGradient, at(gradients.w1));
    biasGradient(run, shape.hidden, hiddenGradient, at(gradients.b1));
    product(run, Transpose::second, shape.embedding, shape.hidden, hiddenGradient, at(weights.w1),
            inputGradient);
  }

  static const Bits* at(const void* address) { return static_cast<const Bits*>(address); }
  static Bits* at(void* address) { return static_cast<Bits*>(address); }
};

template <typename Function>
void eachRun(std::span<const std::int64_t> begins, Function function) {
  const std::int64_t experts = std::ssize(begins) - 1;
  const auto rows = [&](std::int64_t expert) { return begins[expert + 1] - begins[expert]; };
  for (std::int64_t first = 0, next = 0; first < experts; first = next) {
    while (next < experts && rows(next) == rows(first)) ++next;
    if (rows(first) > 0) function(Run{first, next - first, begins[first], rows(first)});
  }
}

template <typename Function>
void withExperts(const ExpertShape& shape, Blas& blas, void* stream, Function function) {
  switch (shape.datatype) {
    case moecclFloat32:
      return function(Experts<Unchanged<float>>{shape, blas, stream});
    case moecclFloat16:
      return function(Experts<Float16>{shape, blas, stream});
    case moecclBfloat16:
      return function(Experts<Bfloat16>{shape, blas, stream});
    default:
      throw Error(moecclInvalidArgument,
                  stringf("experts of datatype %d; on a GPU they are float32 (%d), float16 (%d) or "
                          "bfloat16 (%d)",
                          shape.datatype, moecclFloat32, moecclFloat16, moecclBfloat16));
  }
}

}  // namespace

std::size_t expertWorkspace(const ExpertShape& shape, std::int64_t rows) {
  return static_cast<std::size_t>(rows * shape.hidden) * sizeOf(shape.datatype);
}
std::size_t expertBackwardWorkspace(const ExpertShape& shape, std::int64_t rows) {
  return 2 * expertWorkspace(shape, rows);
}

void expertForward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                   std::span<const std::int64_t> begins, Blas& blas, std::span<std::byte> workspace,
                   void* output, void* stream) {
  withExperts(shape, blas, stream, [&](const auto& experts) {
    eachRun(begins, [&](const Run& run) {
      experts.forward(run, weights, experts.at(input),
                      experts.at(static_cast<void*>(workspace.data())), experts.at(output));
    });
  });
}

void expertBackward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                    const void* outputGradient, std::span<const std::int64_t> begins, Blas& blas,
                    std::span<std::byte> workspace, const StackedGradients& gradients,
                    void* inputGradient, void* stream) {
  withExperts(shape, blas, stream, [&](const auto& experts) {
    auto* const hidden = experts.at(static_cast<void*>(workspace.data()));
    eachRun(begins, [&](const Run& run) {
      experts.backward(run, weights, experts.at(input), experts.at(outputGradient), hidden,
                       hidden + begins.back() * shape.hidden, gradients, experts.at(inputGradient));
    });
  });
}

}  // namespace moeccl::cuda
