// Moves tokens to places or lists of rows and back on a GPU: some threads for a row, or a warp
// where a weight's gradient is summed.
#include "kernels/float_formats.h"
#include "kernels/over_rows_cuda.h"
#include "kernels/permute.h"
#include "kernels/warp_cuda.h"

namespace moeccl::cuda {
namespace {

// Calls body(item) for `items` items, by one warp each.
template <typename Body>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    warpKernel(std::int64_t items, Body body) {
  constexpr std::int64_t kWarps = kThreads / Warp::kCount;
  for (std::int64_t item = blockIdx.x * kWarps + threadIdx.x / Warp::kCount; item < items;
       item += gridDim.x * kWarps)
    body(item);
}

template <typename Body>
void overWarps(std::int64_t items, void* stream, const char* what, Body body) {
  if (items == 0) return;
  const std::int64_t blocks = (items - 1) / (kThreads / Warp::kCount) + 1;
  launchKernel(what, warpKernel<Body>, gridOf(blocks), kThreads, stream, items, body);
}

struct UnusedPlaces {
  const std::int64_t* used;
  std::int64_t groups;
  std::int32_t experts;
  std::int64_t groupSlots, expertStride;
  std::int64_t sharing;  // blocks per group and expert

  // As many as keep a large GPU busy, where there are so many places.
  static std::int64_t blocksSharing(std::int64_t items, std::int64_t places, std::int64_t rows) {
    constexpr std::int64_t kBusy = 4096;
    return std::min((places - 1) / rows + 1, (kBusy - 1) / items + 1);
  }
};

// Some blocks clear the places of a group and an expert together, from the first that is not used.
template <typename Access>
__global__ void __launch_bounds__(kThreads)
    clearKernel(RowShape shape, UnusedPlaces places, std::byte* rows) {
  const std::int64_t blockRows = kThreads / shape.rowThreads;
  const std::int64_t rowInBlock = threadIdx.x / shape.rowThreads;
  const std::int64_t thread = threadIdx.x - rowInBlock * shape.rowThreads;
  const std::int64_t items = places.groups * places.experts;
  for (std::int64_t block = blockIdx.x; block < items * places.sharing; block += gridDim.x) {
    const std::int64_t item = block / places.sharing;
    const std::int64_t group = item / places.experts, expert = item - group * places.experts;
    const std::int64_t first = expert * places.expertStride + group * places.groupSlots;
    for (std::int64_t slot =
             places.used[item] + (block - item * places.sharing) * blockRows + rowInBlock;
         slot < places.groupSlots; slot += places.sharing * blockRows)
      clearRow<Access>(shape, rows, first + slot, thread);
  }
}

// Lists of choices in the parameters of a kernel: all drivers take 4 KiB.
constexpr std::size_t kListsAtOnce = 100;
struct Lists {
  std::int64_t begins[kListsAtOnce + 1];  // of their rows, in all of them
  const std::int64_t* listed[kListsAtOnce];
  const std::byte* inputs[kListsAtOnce];
  std::byte* rows[kListsAtOnce];
  std::int32_t count, choices;

  // The list that has the row; lists without rows have none.
  __device__ std::int32_t listOf(std::int64_t row) const {
    std::int32_t low = 0, high = count - 1;
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (begins[middle + 1] > row)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};
static_assert(sizeof(RowShape) + sizeof(Lists) <= 4096);

template <typename Access>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    gatherKernel(RowShape shape, const __grid_constant__ Lists lists) {
  const std::int64_t blockRows = kThreads / shape.rowThreads;
  const std::int64_t rowInBlock = threadIdx.x / shape.rowThreads;
  const std::int64_t thread = threadIdx.x - rowInBlock * shape.rowThreads;
  for (std::int64_t row = blockIdx.x * blockRows + rowInBlock; row < lists.begins[lists.count];
       row += gridDim.x * blockRows) {
    const std::int32_t list = lists.listOf(row);
    const std::int64_t own = row - lists.begins[list];
    copyRow<Access>(shape, lists.inputs[list], lists.listed[list][own] / lists.choices,
                    lists.rows[list], own, thread);
  }
}

template <typename Access>
struct Scatter {
  RowShape shape;
  Choices<float> choices;
  const std::byte* input;
  std::int64_t expertStride;
  std::byte* rows;
  __device__ void operator()(std::int64_t token, std::int64_t thread) const {
    scatterToken<Access>(shape, choices, input, expertStride, rows, token, thread);
  }
};

template <typename Format, typename Access, bool kWeighted>
struct Gather {
  RowShape shape;
  Choices<float> choices;
  const std::byte* rows;
  std::int64_t expertStride;
  std::byte* output;
  __device__ void operator()(std::int64_t token, std::int64_t thread) const {
    gatherToken<Format, Access, kWeighted>(shape, choices, rows, expertStride, output, token,
                                           thread);
  }
};

template <typename Format, typename Access, bool kWeighted>
struct AddListed {
  RowShape shape;
  Choices<float> choices;
  ListedRows listed;
  const std::byte* rows;
  std::byte* output;
  __device__ void operator()(std::int64_t token, std::int64_t thread) const {
    addListedToken<Format, Access, kWeighted>(shape, choices, listed, rows, output, token, thread);
  }
};

template <typename Format, typename Access>
struct CombineBackward {
  RowShape shape;
  Choices<float> choices;
  const std::byte *rows, *outputGradient;
  std::int64_t expertStride;
  std::byte* rowGradients;
  typename Format::Bits* weightGradients;
  __device__ void operator()(std::int64_t at) const {
    choiceBackward<Format, Access>(Warp{}, shape, choices, rows, outputGradient, expertStride,
                                   rowGradients, weightGradients, at);
  }
};

template <typename Format, typename Access>
struct ListedBackward {
  RowShape shape;
  Choices<float> choices;
  const std::int64_t* listed;
  const std::byte *rows, *outputGradient;
  std::byte* rowGradients;
  typename Format::Bits* weightGradients;
  __device__ void operator()(std::int64_t row) const {
    const std::int64_t at = listed[row];
    const float gradient =
        weightedBackward<Format, Access>(Warp{}, shape, choices.weights[at], rows, row,
                                         outputGradient, at / choices.choices, rowGradients);
    if (Warp::index() == 0) weightGradients[at] = Format::encode(gradient);
  }
};

const std::byte* bytes(const void* at) { return static_cast<const std::byte*>(at); }
std::byte* bytes(void* at) { return static_cast<std::byte*>(at); }

// Calls function(Format{}, Vector<width>{}, shape) for rows of `embedding` elements. Only two
// widths of vectors are compiled, the widest and that of one element.
template <typename Function, typename... Matrices>
void withRows(moecclDataType_t datatype, std::int64_t embedding, Function function,
              Matrices... matrices) {
  const auto as = [&]<typename Format>(Format format) {
    constexpr int kElement = sizeof(typename Format::Bits);
    const std::uint64_t rowBytes = static_cast<std::uint64_t>(embedding) * kElement;
    const std::uint64_t addresses = (addressOf(matrices) | ...);
    if (widthOf(addresses, rowBytes) == 16)
      return function(format, Vector<16>{}, rowShape(addresses, rowBytes));
    function(format, Vector<kElement>{}, rowShape(kElement, rowBytes));
  };
  withFloatFormat("tokens", datatype, as);
}

}  // namespace

void scatterTokens(const Choices<float>& choices, const void* input, std::size_t tokenBytes,
                   std::int64_t expertStride, void* rows, void* stream) {
  const RowShape shape = rowShape(addressOf(input) | addressOf(rows), tokenBytes);
  withWidth(shape.width, [&]<typename Access>(Access) {
    overRows(shape, choices.tokens, stream, "scattering tokens",
             Scatter<Access>{shape, choices, bytes(input), expertStride, bytes(rows)});
  });
}

void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::size_t tokenBytes, std::int64_t expertStride,
                 void* rows, void* stream) {
  const RowShape shape = rowShape(addressOf(rows), tokenBytes);
  const std::int64_t items = groups * experts;
  if (items == 0 || groupSlots == 0 || shape.vectors == 0) return;
  const std::int64_t sharing = UnusedPlaces::blocksSharing(items, groupSlots, shape.blockRows());
  const UnusedPlaces places{used, groups, experts, groupSlots, expertStride, sharing};
  withWidth(shape.width, [&]<typename Access>(Access) {
    launchKernel("clearing places", clearKernel<Access>, gridOf(items * sharing), kThreads, stream,
                 shape, places, bytes(rows));
  });
}

void combineTokens(moecclDataType_t datatype, const Choices<float>& choices, const void* rows,
                   std::int64_t embedding, std::int64_t expertStride, void* output, void* stream) {
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overRows(
        shape, choices.tokens, stream, "combining tokens",
        Gather<Format, Access, true>{shape, choices, bytes(rows), expertStride, bytes(output)});
  };
  withRows(datatype, embedding, run, rows, output);
}

void scatterTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rowGradients, std::int64_t embedding,
                           std::int64_t expertStride, void* inputGradient, void* stream) {
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overRows(shape, choices.tokens, stream, "gathering gradients of tokens",
             Gather<Format, Access, false>{shape, choices, bytes(rowGradients), expertStride,
                                           bytes(inputGradient)});
  };
  withRows(datatype, embedding, run, rowGradients, inputGradient);
}

void combineTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rows, const void* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, void* rowGradients, void* weightGradients,
                           void* stream) {
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overWarps(choices.tokens * choices.choices, stream, "scattering gradients of tokens",
              CombineBackward<Format, Access>{
                  shape, choices, bytes(rows), bytes(outputGradient), expertStride,
                  bytes(rowGradients), static_cast<typename Format::Bits*>(weightGradients)});
  };
  withRows(datatype, embedding, run, rows, outputGradient, rowGradients);
}

void gatherListed(std::int32_t choices, std::span<const GatheredRows> parts, std::size_t tokenBytes,
                  void* stream) {
  std::uint64_t addresses = 0;
  for (const GatheredRows& part : parts) addresses |= addressOf(part.input) | addressOf(part.rows);
  const RowShape shape = rowShape(addresses, tokenBytes);
  if (shape.vectors == 0) return;
  while (!parts.empty()) {
    Lists lists{};
    lists.choices = choices;
    for (; !parts.empty() && lists.count < static_cast<std::int32_t>(kListsAtOnce);
         parts = parts.subspan(1)) {
      const GatheredRows& part = parts.front();
      if (part.listed.empty()) continue;
      lists.listed[lists.count] = part.listed.data();
      lists.inputs[lists.count] = bytes(part.input);
      lists.rows[lists.count] = bytes(part.rows);
      lists.begins[lists.count + 1] = lists.begins[lists.count] + std::ssize(part.listed);
      ++lists.count;
    }
    const std::int64_t rows = lists.begins[lists.count];
    if (rows == 0) return;
    withWidth(shape.width, [&]<typename Access>(Access) {
      launchKernel("gathering tokens", gatherKernel<Access>,
                   gridOf((rows - 1) / shape.blockRows() + 1), kThreads, stream, shape, lists);
    });
  }
}

void addListed(moecclDataType_t datatype, const Choices<float>& choices, const ListedRows& listed,
               const void* rows, std::int64_t embedding, void* output, void* stream) {
  if (listed.count == 0) return;
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overRows(shape, choices.tokens, stream, "adding to tokens",
             AddListed<Format, Access, true>{shape, choices, listed, bytes(rows), bytes(output)});
  };
  withRows(datatype, embedding, run, rows, output);
}

void gatherListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                          const ListedRows& listed, const void* rowGradients,
                          std::int64_t embedding, void* inputGradient, void* stream) {
  if (listed.count == 0) return;
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overRows(shape, choices.tokens, stream, "adding to gradients of tokens",
             AddListed<Format, Access, false>{shape, choices, listed, bytes(rowGradients),
                                              bytes(inputGradient)});
  };
  withRows(datatype, embedding, run, rowGradients, inputGradient);
}

void addListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                       std::span<const std::int64_t> listed, const void* rows,
                       const void* outputGradient, std::int64_t embedding, void* rowGradients,
                       void* weightGradients, void* stream) {
  const auto run = [&]<typename Format, typename Access>(Format, Access, const RowShape& shape) {
    overWarps(std::ssize(listed), stream, "gathering gradients of tokens",
              ListedBackward<Format, Access>{shape, choices, listed.data(), bytes(rows),
                                             bytes(outputGradient), bytes(rowGradients),
                                             static_cast<typename Format::Bits*>(weightGradients)});
  };
  withRows(datatype, embedding, run, rows, outputGradient, rowGradients);
}

}  // namespace moeccl::cuda
