// Counts, prefix sums and ranks for capacity.h and permute.h. The one file that compiles CUB.
#include <cub/device/device_scan.cuh>
#include <limits>

#include "kernels/capacity.h"
#include "kernels/launch_cuda.h"
#include "kernels/permute.h"
#include "kernels/ranking.h"
#include "kernels/warp_cuda.h"

namespace moeccl::cuda {
namespace {

constexpr std::int64_t kWarps = kThreads / Warp::kCount;

__device__ std::int64_t warpInGrid() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / Warp::kCount;
}

__global__ void __launch_bounds__(kThreads) countKernel(Entries entries, std::int64_t* counts) {
  for (std::int64_t chunk = warpInGrid(); chunk < entries.chunks(); chunk += gridDim.x * kWarps)
    countChunk(Warp{}, entries, chunk, counts);
}

__global__ void __launch_bounds__(kThreads)
    slotKernel(Entries entries, std::int64_t groupSlots, const std::int64_t* sums,
               std::int64_t* counts, std::int64_t* slots) {
  for (std::int64_t chunk = warpInGrid(); chunk < entries.chunks(); chunk += gridDim.x * kWarps) {
    const std::int64_t group = entries.groupOf(chunk);
    rankChunk(Warp{}, entries, chunk, sums, counts,
              [&](std::int64_t at, std::int32_t expert, std::int64_t rank) {
                const std::int64_t place =
                    rank < 0 ? rank : rank - firstRank(entries, group, expert, sums);
                slots[at] = place >= 0 && place < groupSlots ? group * groupSlots + place : -1;
              });
  }
}

__global__ void __launch_bounds__(kThreads)
    usedKernel(Entries entries, std::int64_t groupSlots, const std::int64_t* sums,
               std::int64_t* used) {
  const std::int64_t rows = entries.groups * entries.expertCount;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t count =
        rankCount(entries, i / entries.expertCount, i % entries.expertCount, sums);
    used[i] = count < groupSlots ? count : groupSlots;
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    listKernel(Entries entries, const std::int64_t* sums, std::int64_t* counts,
               std::int64_t* begins, std::int64_t* listed, std::int64_t* positions,
               ExpertCounts experts) {
  for (std::int64_t chunk = warpInGrid(); chunk < entries.chunks(); chunk += gridDim.x * kWarps)
    rankChunk(Warp{}, entries, chunk, sums, counts,
              [&](std::int64_t at, std::int32_t, std::int64_t rank) {
                positions[at] = rank;
                if (rank >= 0) listed[rank] = at - entries.groupOf(chunk) * entries.groupTokens;
              });
  const std::int64_t row = entries.expertCount + 1;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < entries.groups * row;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t group = i / row, e = i - group * row;
    begins[i] = firstRank(entries, group, e, sums);
    if (e < entries.expertCount) experts.set(group, e, rankCount(entries, group, e, sums));
  }
}

unsigned warpGrid(std::int64_t warps) {
  return gridOf(static_cast<std::uint64_t>((warps + kWarps - 1) / kWarps));
}

std::size_t scanBytes(std::int64_t items) {
  std::size_t bytes = 0;
  int devices = 0;  // without a driver CUB would say something else
  check(cudaGetDeviceCount(&devices), "looking for GPUs");
  check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<std::int64_t*>(nullptr),
                                      static_cast<std::int64_t*>(nullptr), items),
        "planning a prefix sum");
  return bytes;
}

// Laid out in a workspace: counts, with one that only the total needs, their prefix sum, and what
// CUB needs.
struct Ranks {
  std::int64_t *counts, *sums;

  static std::size_t bytes(const Entries& entries) {
    const std::int64_t items = entries.counters() + 1;
    return 2 * items * sizeof(std::int64_t) + scanBytes(items);
  }

  Ranks(const Entries& entries, std::byte* workspace, std::size_t size, cudaStream_t stream)
      : counts(reinterpret_cast<std::int64_t*>(workspace)), sums(counts + entries.counters() + 1) {
    const std::int64_t items = entries.counters() + 1;
    const std::size_t own = 2 * items * sizeof(std::int64_t);
    std::size_t rest = size - own;
    check(cudaMemsetAsync(counts + items - 1, 0, sizeof(std::int64_t), stream),
          "clearing a counter");
    launchKernel("counting choices", countKernel, warpGrid(entries.chunks()), kThreads, stream,
                 entries, counts);
    check(cub::DeviceScan::ExclusiveSum(workspace + own, rest, counts, sums, items, stream),
          "summing counts of choices");
  }
};

Entries entriesOf(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                  std::int64_t groups) {
  return moeccl::entriesOf(chosen, nullptr, tokens, shape.choices, shape.experts, shape.groupTokens,
                           groups);
}

// The choices of groups, in the order in which they lie.
Entries entriesOf(const Choices<float>& choices, std::int64_t groups, std::int32_t experts) {
  const std::int64_t count = choices.tokens * choices.choices;
  return moeccl::entriesOf(choices.experts, choices.slots, count, 1, experts, count / groups,
                           groups);
}

}  // namespace

std::size_t assignSlotsWorkspace(const CapacityShape& shape, std::int64_t tokens,
                                 std::int64_t groups) {
  return Ranks::bytes(entriesOf(shape, nullptr, tokens, groups));
}

void assignSlots(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                 std::int64_t groups, std::int64_t* used, std::int64_t* slots,
                 std::span<std::byte> workspace, void* stream) {
  if (groups == 0) return;
  const Entries entries = entriesOf(shape, chosen, tokens, groups);
  const Ranks ranks(entries, workspace.data(), workspace.size(), streamOf(stream));
  const std::int64_t rows = groups * shape.experts;
  launchKernel("counting places", usedKernel, gridOf((rows - 1) / kThreads + 1), kThreads, stream,
               entries, shape.groupSlots, ranks.sums, used);
  launchKernel("assigning places", slotKernel, warpGrid(entries.chunks()), kThreads, stream,
               entries, shape.groupSlots, ranks.sums, ranks.counts, slots);
}

std::size_t listByExpertWorkspace(std::int64_t choices, std::int64_t groups, std::int32_t experts) {
  return Ranks::bytes(
      moeccl::entriesOf(nullptr, nullptr, choices, 1, experts, choices / groups, groups));
}

void listByExpert(const Choices<float>& choices, std::int64_t groups, std::int32_t experts,
                  std::int64_t* begins, std::int64_t* listed, std::int64_t* positions,
                  const ExpertCounts& counts, std::span<std::byte> workspace, void* stream) {
  const Entries entries = entriesOf(choices, groups, experts);
  const Ranks ranks(entries, workspace.data(), workspace.size(), streamOf(stream));
  launchKernel("listing choices by expert", listKernel, warpGrid(entries.chunks()), kThreads,
               stream, entries, ranks.sums, ranks.counts, begins, listed, positions, counts);
}

}  // namespace moeccl::cuda
