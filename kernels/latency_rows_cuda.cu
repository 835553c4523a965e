// Launches one kernel for each step of latency mode: choices are written, counted and given places,
// then rows are brought, packed and added up.
#include "kernels/float_formats.h"
#include "kernels/latency_rows.h"
#include "kernels/over_rows_cuda.h"
#include "kernels/warp_cuda.h"

namespace moeccl::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    choicesKernel(const __grid_constant__ LatencyRows rows) {
  for (std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; token < rows.bucket;
       token += std::int64_t{gridDim.x} * kThreads) {
    rows.writeChoices(token);
    const std::int32_t* const its = rows.expertsOf(rows.rank, token);
    for (std::int32_t c = 0; c < rows.choices; ++c)
      if (its[c] >= 0) atomicAdd(reinterpret_cast<unsigned long long*>(rows.loads + its[c]), 1ull);
  }
}

// A warp for each of the rank's experts and source; with kPlaces it gives places.
template <bool kPlaces>
__global__ void __launch_bounds__(kThreads) runsKernel(const __grid_constant__ LatencyRows rows) {
  constexpr int kWarps = kThreads / Warp::kCount;
  const std::int64_t runs = std::int64_t{rows.localExperts} * rows.ranks;
  for (std::int64_t run = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / Warp::kCount;
       run < runs; run += std::int64_t{gridDim.x} * kWarps) {
    const auto expert = static_cast<std::int32_t>(run / rows.ranks) + rows.firstExpert;
    const auto source = static_cast<std::int32_t>(run % rows.ranks);
    std::int64_t next = kPlaces ? rows.firsts[run] : 0;
    for (std::int64_t first = 0; first < rows.bucket; first += Warp::kCount) {
      const std::int64_t token = first + Warp::index();
      const std::int32_t choice =
          token < rows.bucket ? rows.find(source, token, expert) : std::int32_t{-1};
      const unsigned all = __ballot_sync(Warp::kAll, choice >= 0);
      if (kPlaces && choice >= 0)
        rows.places[rows.choiceAt(source, token, choice)] =
            static_cast<std::int32_t>(next + __popc(all & ((1u << Warp::index()) - 1)));
      next += __popc(all);
    }
    if (!kPlaces && Warp::index() == 0) rows.counts[run] = next;
  }
}

// One warp: where runs begin.
__global__ void __launch_bounds__(kThreads) beginsKernel(const __grid_constant__ LatencyRows rows) {
  const std::int64_t runs = std::int64_t{rows.localExperts} * rows.ranks;
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < runs; first += Warp::kCount) {
    const std::int64_t run = first + Warp::index();
    const std::int64_t own = run < runs ? rows.counts[run] : 0;
    std::int64_t sum = own;
    for (int apart = 1; apart < Warp::kCount; apart *= 2) {
      const std::int64_t other = __shfl_up_sync(Warp::kAll, sum, apart);
      if (Warp::index() >= apart) sum += other;
    }
    if (run < runs) {
      rows.firsts[run] = before + sum - own;
      if (run % rows.ranks == 0) rows.begins[run / rows.ranks] = before + sum - own;
    }
    before += __shfl_sync(Warp::kAll, sum, Warp::kCount - 1);
  }
  if (Warp::index() != 0) return;
  rows.begins[rows.localExperts] = before;
  rows.loads[rows.experts] += before;
}

// A choice of a token of a source, by its number among all.
struct ChoiceAt {
  __device__ ChoiceAt(const LatencyRows& rows, std::int64_t index)
      : choice(static_cast<std::int32_t>(index % rows.choices)),
        token(index / rows.choices % rows.bucket),
        source(static_cast<std::int32_t>(index / rows.choices / rows.bucket)),
        expert(rows.expertsOf(source, token)[choice]) {}
  std::int32_t choice;
  std::int64_t token;
  std::int32_t source, expert;
};

template <typename Access>
struct BringRows {
  RowShape shape;
  LatencyRows rows;
  __device__ void operator()(std::int64_t index, std::int64_t thread) const {
    const ChoiceAt at(rows, index);
    if (rows.isOwn(at.expert))
      copyRow<Access>(shape, rows.region(at.source) + rows.headerBytes, at.token, rows.output,
                      rows.places[index], thread);
  }
};

template <typename Access>
struct PackRows {
  RowShape shape;
  LatencyRows rows;
  __device__ void operator()(std::int64_t index, std::int64_t thread) const {
    const ChoiceAt at(rows, index);
    if (rows.isOwn(at.expert))
      copyRow<Access>(
          shape, rows.input, rows.places[index], rows.stage,
          rows.stageRow(at.source, at.token, rows.before(at.source, at.token, at.expert)), thread);
  }
};

template <typename Format, typename Access>
struct SumRows {
  RowShape shape;
  LatencyRows rows;
  __device__ void operator()(std::int64_t index, std::int64_t thread) const {
    eachVectors(shape, thread, [&](std::int64_t first, int count) {
      Sums<Format, Access> values;
      values.clear(-0.0f);  // to which whatever is added stays what it is
      bool any = false;
      std::byte* const to = rows.eachTerm(index / rows.bucket, index % rows.bucket,
                                          [&](const std::byte* from, float weight) {
                                            Row<Access> row;
                                            row.load(shape, from, 0, first, count);
                                            values.add(weight, row, count);
                                            any = true;
                                          });
      if (any) values.row().store(shape, to, 0, first, count);
    });
  }
};

template <typename Format, typename Access>
struct FinishRows {
  RowShape shape;
  LatencyRows rows;
  __device__ void operator()(std::int64_t token, std::int64_t thread) const {
    eachVectors(shape, thread, [&](std::int64_t first, int count) {
      Sums<Format, Access> values;
      values.clear(-0.0f);
      bool any = false;
      for (std::int32_t node = 0; node < rows.nodes; ++node) {
        if (!rows.has(token, node)) continue;
        Row<Access> row;
        row.load(shape, rows.back, node * rows.bucket + token, first, count);
        values.add(1, row, count);
        any = true;
      }
      if (!any) values.clear();
      values.row().store(shape, rows.output, token, first, count);
    });
  }
};

void overBlocks(const char* what, void (*kernel)(LatencyRows), std::int64_t items, int threads,
                const LatencyRows& rows, void* stream) {
  if (items == 0) return;
  launchKernel(what, kernel, gridOf(static_cast<std::uint64_t>((items - 1) / threads + 1)),
               kThreads, stream, rows);
}

// Launches a body whose rows are only copied.
template <template <typename> typename Body>
void copies(const char* what, const LatencyRows& rows, std::uint64_t addresses,
            std::size_t rowBytes, void* stream) {
  const RowShape shape = rowShape(addresses, rowBytes);
  withWidth(shape.width, [&]<typename Access>(Access) {
    overRows(shape, rows.ranks * rows.bucket * rows.choices, stream, what,
             Body<Access>{shape, rows});
  });
}

// Only two widths of vectors are compiled, the widest and that of one element.
template <template <typename, typename> typename Body>
void sums(const char* what, const LatencyRows& rows, std::int64_t count, std::uint64_t addresses,
          void* stream) {
  withFloatFormat("rows", rows.datatype, [&]<typename Format>(Format) {
    constexpr int kElement = sizeof(typename Format::Bits);
    const auto run = [&]<typename Access>(Access, std::uint64_t alignment) {
      const RowShape shape = rowShape(alignment, rows.combineBytes);
      overRows(shape, count, stream, what, Body<Format, Access>{shape, rows});
    };
    if (widthOf(addresses, rows.combineBytes) == 16)
      run(Vector<16>{}, addresses);
    else
      run(Vector<kElement>{}, kElement);
  });
}

}  // namespace

void runLatency(LatencyStep step, const LatencyRows& rows, void* stream) {
  constexpr int kWarps = kThreads / Warp::kCount;
  const std::int64_t runs = std::int64_t{rows.localExperts} * rows.ranks;
  switch (step) {
    case LatencyStep::choices:
      return overBlocks("writing choices", choicesKernel, rows.bucket, kThreads, rows, stream);
    case LatencyStep::counts:
      return overBlocks("counting choices", runsKernel<false>, runs, kWarps, rows, stream);
    case LatencyStep::begins:
      launchKernel("adding up counts", beginsKernel, 1, Warp::kCount, stream, rows);
      return;
    case LatencyStep::places:
      return overBlocks("giving places to choices", runsKernel<true>, runs, kWarps, rows, stream);
    case LatencyStep::rows:
      return copies<BringRows>(
          "bringing rows", rows,
          addressOf(rows.regions) | rows.regionBytes | rows.headerBytes | addressOf(rows.output),
          rows.rowBytes, stream);
    case LatencyStep::pack:
      return copies<PackRows>("packing rows", rows, addressOf(rows.input) | addressOf(rows.stage),
                              rows.combineBytes, stream);
    case LatencyStep::sums:
      return sums<SumRows>("adding up a node's rows", rows, rows.sums * rows.bucket,
                           addressOf(rows.stage) | addressOf(rows.terms) | addressOf(rows.sumRows) |
                               addressOf(rows.back),
                           stream);
    case LatencyStep::finish:
      return sums<FinishRows>("adding up nodes' rows", rows, rows.tokens,
                              addressOf(rows.back) | addressOf(rows.output), stream);
  }
}

}  // namespace moeccl::cuda
