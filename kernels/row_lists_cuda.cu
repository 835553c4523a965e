// Copies rows and adds them up by lists on a GPU, some threads for each row that is written.
#include "kernels/float_formats.h"
#include "kernels/over_rows_cuda.h"
#include "kernels/row_lists.h"

namespace moeccl::cuda {
namespace {

template <typename Access>
struct Copy {
  RowShape shape;
  RowMatrices matrices;
  RowCopies copies;
  __device__ void operator()(std::int64_t i, std::int64_t thread) const {
    const RowAt from = copies.from[i], to = copies.to[i];
    copyRow<Access>(shape, matrices.matrix(from.matrix), from.row, matrices.matrix(to.matrix),
                    to.row, thread);
  }
};

template <typename Format, typename Access>
struct Add {
  RowShape shape;
  RowMatrices matrices;
  RowSums sums;
  RowWeights weights;
  __device__ void operator()(std::int64_t i, std::int64_t thread) const {
    const std::int32_t begin = sums.begins[i], end = sums.begins[i + 1];
    const RowAt to = sums.to[i];
    eachVectors(shape, thread, [&](std::int64_t first, int count) {
      Sums<Format, Access> values;
      // Whatever is added to -0 stays what it is, -0 too.
      values.clear(begin == end ? 0.0f : -0.0f);
      for (std::int32_t term = begin; term < end; ++term) {
        const RowAt from = sums.terms[term];
        Row<Access> row;
        row.load(shape, matrices.matrix(from.matrix), from.row, first, count);
        values.add(weights.at(from), row, count);
      }
      values.row().store(shape, matrices.matrix(to.matrix), to.row, first, count);
    });
  }
};

std::uint64_t addressesOf(const RowMatrices& matrices) {
  return addressOf(matrices.at[0]) | addressOf(matrices.at[1]) | addressOf(matrices.at[2]);
}

}  // namespace

void copyRows(const RowMatrices& matrices, const RowCopies& copies, void* stream) {
  const RowShape shape = rowShape(addressesOf(matrices), matrices.rowBytes);
  withWidth(shape.width, [&]<typename Access>(Access) {
    overRows(shape, copies.count, stream, "copying rows", Copy<Access>{shape, matrices, copies});
  });
}

// Only two widths of vectors are compiled, the widest and that of one element.
void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
             const RowWeights& weights, void* stream) {
  withFloatFormat("rows", datatype, [&]<typename Format>(Format) {
    constexpr int kElement = sizeof(typename Format::Bits);
    const auto add = [&]<typename Access>(Access, std::uint64_t addresses) {
      const RowShape shape = rowShape(addresses, matrices.rowBytes);
      overRows(shape, sums.count, stream, "adding rows",
               Add<Format, Access>{shape, matrices, sums, weights});
    };
    if (widthOf(addressesOf(matrices), matrices.rowBytes) == 16)
      add(Vector<16>{}, addressesOf(matrices));
    else
      add(Vector<kElement>{}, kElement);
  });
}

}  // namespace moeccl::cuda
