// Reduces several arrays to one on a GPU. Frequent operations on aligned arrays have kernels of
// their own; all others share one that is told the operation.
#include "kernels/launch_cuda.h"
#include "kernels/reduce.h"
#include "kernels/reduce_packs.h"
#include "src/base/text.h"

namespace moeccl::cuda {
namespace {

template <typename Format, typename Op, int kElements>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    reduceKernel(const __grid_constant__ ReduceTerms terms, Op op, std::uint64_t elements,
                 std::uint64_t items) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t item = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; item < items;
       item += stride)
    reduceItem<Format, Op, kElements>(terms, op, elements, item);
}

// One element after the other: averages are few, beside what crosses the network for them.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    divideKernel(std::byte* data, std::uint64_t elements, std::int64_t divisor) {
  using Bits = typename Format::Bits;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += stride) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    bits = divided<Format>(bits, divisor);
    std::memcpy(data + i * sizeof(Bits), &bits, sizeof(Bits));
  }
}

template <typename Format, typename Op, bool kAligned>
void launch(const ReduceTerms& terms, Op op, std::size_t bytes, void* stream) {
  constexpr int kElements = kPackElements<Format, kAligned>;
  const std::uint64_t elements = bytes / sizeof(typename Format::Bits);
  const std::uint64_t items = reduceItems(elements, kElements);
  if (items == 0) return;
  launchKernel("reducing", reduceKernel<Format, Op, kElements>, gridOf((items - 1) / kThreads + 1),
               kThreads, stream, terms, op, elements, items);
}

}  // namespace

void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
            const std::byte* const* sources, std::size_t stride, std::size_t count,
            std::size_t bytes, void* stream) {
  if (count > kMaxTerms)
    throw Error(
        moecclInvalidUsage,
        stringf("a reduction of %zu terms on a GPU; it takes %zu at most", count, kMaxTerms));
  ReduceTerms terms;
  terms.dst = dst;
  terms.count = count;
  std::uint64_t addresses = addressOf(dst);
  for (std::size_t term = 0; term < count; ++term) {
    terms.sources[term] = sources[term * stride];
    addresses |= addressOf(terms.sources[term]);
  }
  withFormat(datatype, [&]<typename Format>(Format) {
    if (addresses % 16 != 0)
      withOp(op, [&](auto) { launch<Format, AnyOp, false>(terms, {op}, bytes, stream); });
    else
      withOp(op, [&]<typename Op>(Op known) {
        if constexpr (kIsFrequent<Op>)
          launch<Format, Op, true>(terms, known, bytes, stream);
        else
          launch<Format, AnyOp, true>(terms, {op}, bytes, stream);
      });
  });
}

void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor,
            void* stream) {
  withFormat(datatype, [&]<typename Format>(Format) {
    using Bits = typename Format::Bits;
    const std::uint64_t elements = bytes / sizeof(Bits);
    if (elements == 0) return;
    launchKernel("dividing", divideKernel<Format>, gridOf((elements - 1) / kThreads + 1), kThreads,
                 stream, data, elements, divisor);
  });
}

}  // namespace moeccl::cuda
