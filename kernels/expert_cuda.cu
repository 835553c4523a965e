// Computes experts on a GPU: one product for each run of experts with equally many rows, and
// kernels for biases, activations and the gradients of biases.
#include <iterator>
#include <vector>

#include "kernels/activation_device.h"
#include "kernels/blas_cuda.h"
#include "kernels/expert.h"
#include "kernels/float_formats.h"
#include "kernels/launch_cuda.h"
#include "kernels/permute_rows.h"
#include "kernels/reduce.h"

namespace moeccl::cuda {
namespace {

// Neighbouring experts with equally many rows each.
struct Run {
  std::int64_t firstExpert, experts, firstRow, rows;
};

// Where the rows of some experts begin, in the parameters of kernels: all drivers take 4 KiB.
constexpr std::int64_t kExpertsAtOnce = 384;
struct RowsOfExperts {
  std::int64_t begins[kExpertsAtOnce + 1];
  std::int32_t firstExpert, experts;

  __device__ std::int64_t count() const { return begins[experts] - begins[0]; }
  // The expert that has the row; experts without rows have none.
  __device__ std::int64_t expertOf(std::int64_t row) const {
    std::int32_t low = 0, high = experts - 1;
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (begins[middle + 1] > row)
        high = middle;
      else
        low = middle + 1;
    }
    return firstExpert + low;
  }
};

// Calls body(row, expert, first, count), as eachVectors does, for the rows of the experts.
template <typename Body>
__device__ void overRows(const RowShape& shape, const RowsOfExperts& rows, Body body) {
  const std::int64_t blockRows = kThreads / shape.rowThreads;
  const std::int64_t rowInBlock = threadIdx.x / shape.rowThreads;
  const std::int64_t thread = threadIdx.x - rowInBlock * shape.rowThreads;
  for (std::int64_t row = blockIdx.x * blockRows + rowInBlock; row < rows.count();
       row += gridDim.x * blockRows) {
    const std::int64_t at = rows.begins[0] + row, expert = rows.expertOf(at);
    eachVectors(shape, thread,
                [&](std::int64_t first, int count) { body(at, expert, first, count); });
  }
}

// Numbers of vectors, decoded: values [rows][width] plus bias [experts][width], where there is one.
template <typename Format, typename Access>
__device__ Sums<Format, Access> biased(const RowShape& shape, const std::byte* values,
                                       const std::byte* bias, std::int64_t row, std::int64_t expert,
                                       std::int64_t first, int count) {
  Row<Access> loaded;
  Sums<Format, Access> sums;
  sums.clear();
  loaded.load(shape, values, row, first, count);
  sums.add(1, loaded, count);
  if (bias == nullptr) return sums;
  loaded.load(shape, bias, expert, first, count);
  sums.add(1, loaded, count);
  return sums;
}

// Calls function(i) for each number. Unrolled, so that all of them are registers.
template <typename Numbers, typename Function>
__device__ void eachOf(const Numbers& numbers, Function function) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 0; i < static_cast<int>(std::size(numbers.values)); ++i) function(i);
}

// values = of(values + bias).
template <typename Format, typename Access, typename Function>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    biasKernel(RowShape shape, const __grid_constant__ RowsOfExperts rows, std::byte* values,
               const std::byte* bias) {
  overRows(shape, rows, [&](std::int64_t row, std::int64_t expert, std::int64_t first, int count) {
    Sums<Format, Access> sums =
        biased<Format, Access>(shape, values, bias, row, expert, first, count);
    eachOf(sums, [&](int i) { sums.values[i] = Function::of(sums.values[i]); });
    sums.row().store(shape, values, row, first, count);
  });
}

// values = of(values + bias), and gradients *= slope(values + bias).
template <typename Format, typename Access, typename Function>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    slopeKernel(RowShape shape, const __grid_constant__ RowsOfExperts rows, std::byte* values,
                const std::byte* bias, std::byte* gradients) {
  overRows(shape, rows, [&](std::int64_t row, std::int64_t expert, std::int64_t first, int count) {
    Sums<Format, Access> sums =
        biased<Format, Access>(shape, values, bias, row, expert, first, count);
    Sums<Format, Access> slopes =
        biased<Format, Access>(shape, gradients, nullptr, row, expert, first, count);
    eachOf(sums, [&](int i) {
      slopes.values[i] *= Function::slope(sums.values[i]);
      sums.values[i] = Function::of(sums.values[i]);
    });
    sums.row().store(shape, values, row, first, count);
    slopes.row().store(shape, gradients, row, first, count);
  });
}

// sums [experts][width] += the rows of each expert: a block for 32 columns of one, in one order.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    addRowsKernel(const __grid_constant__ RowsOfExperts rows, const typename Format::Bits* values,
                  std::int64_t width, typename Format::Bits* sums) {
  constexpr int kColumns = 32, kParts = kThreads / kColumns;
  __shared__ float parts[kParts][kColumns];
  const int part = static_cast<int>(threadIdx.x) / kColumns, lane = threadIdx.x % kColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumns + lane;
  const std::int64_t begin = rows.begins[blockIdx.y], end = rows.begins[blockIdx.y + 1];
  if (begin == end) return;
  float sum = 0;
  for (std::int64_t row = begin + part; column < width && row < end; row += kParts)
    sum += Format::decode(values[row * width + column]);
  parts[part][lane] = sum;
  __syncthreads();
  if (part > 0 || column >= width) return;
  auto& target = sums[(rows.firstExpert + blockIdx.y) * width + column];
  float total = Format::decode(target);
  for (int i = 0; i < kParts; ++i) total += parts[i][lane];
  target = Format::encode(total);
}

template <typename Function>
void eachRun(std::span<const std::int64_t> begins, Function function) {
  const std::int64_t experts = std::ssize(begins) - 1;
  const auto rows = [&](std::int64_t expert) { return begins[expert + 1] - begins[expert]; };
  for (std::int64_t first = 0, next = 0; first < experts; first = next) {
    while (next < experts && rows(next) == rows(first)) ++next;
    if (rows(first) > 0) function(Run{first, next - first, begins[first], rows(first)});
  }
}

// All that is done for one format.
template <typename Format>
class Experts {
 public:
  using Bits = typename Format::Bits;

  Experts(const ExpertShape& shape, std::span<const std::int64_t> begins, Blas& blas, void* stream)
      : shape_(shape), begins_(begins), blas_(blas), stream_(stream) {}

  void forward(const StackedWeights& weights, const Bits* input, Bits* hidden, Bits* output) const {
    product(Transpose::none, shape_.hidden, shape_.embedding, input, at(weights.w1), hidden);
    withActivation(
        [&]<typename Function>(Function) { addBias<Function>(shape_.hidden, hidden, weights.b1); });
    product(Transpose::none, shape_.embedding, shape_.hidden, hidden, at(weights.w2), output);
    if (weights.b2 != nullptr) addBias<Identity>(shape_.embedding, output, weights.b2);
  }

  void backward(const StackedWeights& weights, const Bits* input, const Bits* outputGradient,
                Bits* hidden, Bits* hiddenGradient, const StackedGradients& gradients,
                Bits* inputGradient) const {
    product(Transpose::none, shape_.hidden, shape_.embedding, input, at(weights.w1), hidden);
    product(Transpose::second, shape_.hidden, shape_.embedding, outputGradient, at(weights.w2),
            hiddenGradient);
    withActivation([&]<typename Function>(Function) {
      overRowsOf(shape_.hidden, {hidden, hiddenGradient, weights.b1},
                 [&]<typename Access>(Access, const RowShape& shape, const RowsOfExperts& rows,
                                      unsigned grid) {
                   launchKernel("differentiating an activation",
                                slopeKernel<Format, Access, Function>, grid, kThreads, stream_,
                                shape, rows, bytes(hidden), bytes(weights.b1),
                                bytes(hiddenGradient));
                 });
    });
    weightGradient(shape_.hidden, shape_.embedding, hidden, outputGradient, at(gradients.w2));
    biasGradient(shape_.embedding, outputGradient, at(gradients.b2));
    weightGradient(shape_.embedding, shape_.hidden, input, hiddenGradient, at(gradients.w1));
    biasGradient(shape_.hidden, hiddenGradient, at(gradients.b1));
    product(Transpose::second, shape_.embedding, shape_.hidden, hiddenGradient, at(weights.w1),
            inputGradient);
  }

  static const Bits* at(const void* address) { return static_cast<const Bits*>(address); }
  static Bits* at(void* address) { return static_cast<Bits*>(address); }

 private:
  static const std::byte* bytes(const void* at) { return static_cast<const std::byte*>(at); }
  static std::byte* bytes(void* at) { return static_cast<std::byte*>(at); }

  template <typename Function>
  void withActivation(Function function) const {
    if (shape_.activation == Activation::gelu)
      function(Gelu{});
    else
      function(Relu{});
  }

  // Row-major products of each expert, of matrices of its rows and matrices of its weights.
  void product(Transpose transpose, std::int64_t columns, std::int64_t inner, const Bits* rowsIn,
               const Bits* weights, Bits* rowsOut) const {
    std::vector<Product> products;
    eachRun(begins_, [&](const Run& run) {
      products.push_back({.transpose = transpose,
                          .rows = run.rows,
                          .columns = columns,
                          .inner = inner,
                          .a = rowsIn + run.firstRow * inner,
                          .b = weights + run.firstExpert * columns * inner,
                          .c = rowsOut + run.firstRow * columns,
                          .count = run.experts,
                          .apartA = run.rows * inner,
                          .apartB = columns * inner,
                          .apartC = run.rows * columns});
    });
    blas_.multiply(shape_.datatype, products, stream_);
  }
  // weights [rows][columns] += a^T b over the rows of each expert.
  void weightGradient(std::int64_t rows, std::int64_t columns, const Bits* a, const Bits* b,
                      Bits* weights) const {
    if (weights == nullptr) return;
    std::vector<Product> products;
    eachRun(begins_, [&](const Run& run) {
      products.push_back({.transpose = Transpose::first,
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
                          .apartC = rows * columns});
    });
    blas_.multiply(shape_.datatype, products, stream_);
  }

  // Calls function(rows) for the experts that have rows, as many at a time as kernels take.
  template <typename Function>
  void eachPart(Function function) const {
    const std::int64_t experts = std::ssize(begins_) - 1;
    for (std::int64_t first = 0; first < experts; first += kExpertsAtOnce) {
      const std::int64_t count = std::min(kExpertsAtOnce, experts - first);
      if (begins_[first] == begins_[first + count]) continue;
      RowsOfExperts rows;
      std::copy_n(begins_.begin() + first, count + 1, rows.begins);
      rows.firstExpert = static_cast<std::int32_t>(first);
      rows.experts = static_cast<std::int32_t>(count);
      function(rows);
    }
  }
  // Calls function(Access{}, shape, rows, blocks) for rows of so many numbers of these matrices. Of
  // the widths that there are, only the widest and that of one element are compiled.
  template <typename Function>
  void overRowsOf(std::int64_t width, std::initializer_list<const void*> matrices,
                  Function function) const {
    std::uint64_t addresses = 0;
    for (const void* matrix : matrices) addresses |= addressOf(matrix);
    const std::uint64_t rowBytes = static_cast<std::uint64_t>(width) * sizeof(Bits);
    const bool wide = widthOf(addresses, rowBytes) == 16;
    const RowShape shape = rowShape(wide ? addresses : sizeof(Bits), rowBytes);
    eachPart([&](const RowsOfExperts& rows) {
      const std::int64_t count = rows.begins[rows.experts] - rows.begins[0];
      const unsigned grid = gridOf((count - 1) / shape.blockRows() + 1);
      if (wide)
        function(Vector<16>{}, shape, rows, grid);
      else
        function(Vector<sizeof(Bits)>{}, shape, rows, grid);
    });
  }
  template <typename Function>
  void addBias(std::int64_t width, Bits* values, const void* bias) const {
    overRowsOf(width, {values, bias},
               [&]<typename Access>(Access, const RowShape& shape, const RowsOfExperts& rows,
                                    unsigned grid) {
                 launchKernel("adding a bias", biasKernel<Format, Access, Function>, grid, kThreads,
                              stream_, shape, rows, bytes(values), bytes(bias));
               });
  }
  void biasGradient(std::int64_t width, const Bits* values, Bits* sums) const {
    if (sums == nullptr) return;
    eachPart([&](const RowsOfExperts& rows) {
      const dim3 blocks(gridOf((width - 1) / 32 + 1), static_cast<unsigned>(rows.experts));
      launchKernel("adding rows", addRowsKernel<Format>, blocks, kThreads, stream_, rows, values,
                   width, sums);
    });
  }

  const ExpertShape& shape_;
  std::span<const std::int64_t> begins_;
  Blas& blas_;
  void* stream_;
};

template <typename Function>
void withExperts(const ExpertShape& shape, std::span<const std::int64_t> begins, Blas& blas,
                 void* stream, Function function) {
  withFloatFormat("experts", shape.datatype, [&]<typename Format>(Format) {
    function(Experts<Format>(shape, begins, blas, stream));
  });
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
  withExperts(shape, begins, blas, stream, [&](const auto& experts) {
    experts.forward(weights, experts.at(input), experts.at(static_cast<void*>(workspace.data())),
                    experts.at(output));
  });
}

void expertBackward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                    const void* outputGradient, std::span<const std::int64_t> begins, Blas& blas,
                    std::span<std::byte> workspace, const StackedGradients& gradients,
                    void* inputGradient, void* stream) {
  withExperts(shape, begins, blas, stream, [&](const auto& experts) {
    auto* const hidden = experts.at(static_cast<void*>(workspace.data()));
    experts.backward(weights, experts.at(input), experts.at(outputGradient), hidden,
                     hidden + begins.back() * shape.hidden, gradients, experts.at(inputGradient));
  });
}

}  // namespace moeccl::cuda
