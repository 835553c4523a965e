// Copies of blocks on a GPU.
#include "kernels/copy.h"

#include <algorithm>

#include "src/base/error.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

struct Side {
  std::ptrdiff_t stride;
  std::size_t first, room;  // bytes
};

// Blocks of one side, forwards or backwards, from an address that is often a multiple of 16.
Side sideOf(Random& random, std::size_t bytes, std::int64_t count) {
  const std::size_t gaps[] = {0, 0, 1, 4, 16, 48}, shifts[] = {0, 0, 0, 1, 2, 4, 8};
  const std::size_t stride = bytes + gaps[random() % std::size(gaps)];
  const std::size_t shift = shifts[random() % std::size(shifts)];
  Side side{static_cast<std::ptrdiff_t>(stride), shift, count * stride + shift + 1};
  if (random() % 4 == 0 && count > 0)
    side.first += (count - 1) * stride, side.stride = -side.stride;
  return side;
}

void copyMany(Random& random, std::size_t copies, bool single) {
  const std::size_t sizes[] = {0, 1, 3, 16, 100, 1024, 4096, 16384, 40003, 1 << 20};
  const std::size_t kinds = std::size(sizes) - (quick() ? 2 : 0);
  std::vector<BlockCopy> calls;
  std::vector<std::byte> source, target;
  std::vector<std::pair<Side, Side>> sides;
  std::vector<std::size_t> from, to, bytes;
  std::vector<std::int64_t> counts;
  const auto align = [](std::vector<std::byte>& all) { all.resize((all.size() + 15) / 16 * 16); };
  for (std::size_t i = 0; i < copies; ++i) {
    bytes.push_back(sizes[random() % kinds]);
    const int most = single ? 2 : bytes.back() > (quick() ? 2000 : 20000) ? 4 : 90;
    counts.push_back(random() % most);
    sides.emplace_back(sideOf(random, bytes.back(), counts.back()),
                       sideOf(random, bytes.back(), counts.back()));
    align(source);
    align(target);
    from.push_back(source.size() + sides.back().first.first);
    to.push_back(target.size() + sides.back().second.first);
    source.resize(source.size() + sides.back().first.room);
    target.resize(target.size() + sides.back().second.room, std::byte{0x5a});
  }
  for (std::byte& byte : source) byte = static_cast<std::byte>(random());
  Device<std::byte> deviceSource(source), deviceTarget(target);
  for (std::size_t i = 0; i < copies; ++i) {
    const auto& [in, out] = sides[i];
    copyBlocks(target.data() + to[i], out.stride, source.data() + from[i], in.stride, bytes[i],
               counts[i]);
    calls.push_back({deviceTarget.data() + to[i], out.stride, deviceSource.data() + from[i],
                     in.stride, bytes[i], counts[i]});
  }
  moeccl::cuda::copyBlocks(calls, nullptr);
  expectSame(deviceTarget.get("copy"), target, std::to_string(copies) + " copies");
}

GPU_TEST(copiesOfAllKinds) {
  for (int round = 0; round < (quick() ? 3 : 40); ++round)
    for (const bool single : {false, true})
      for (std::size_t copies : {0, 1, 2, 8, 9, 40, 41, 126, 127, 260})
        copyMany(random, copies, single);
}

// Beyond what 32 bits count, in bytes and in items.
GPU_TEST(copiesOfMoreThanFourGibibytes) {
  if (quick()) return expect(true, "left out");
  const std::size_t size = (std::size_t{1} << 32) + 4099;
  Device<std::byte> source(size), target(size);
  moeccl::gpu::cuda(cudaMemset(source.data(), 1, size), "filling");
  moeccl::gpu::cuda(cudaMemset(source.data() + size - 9, 2, 9), "filling");
  const BlockCopy copy{target.data() + 1, 0, source.data() + 1, 0, size - 1, 1};
  moeccl::cuda::copyBlocks({&copy, 1}, nullptr);
  std::vector<std::byte> end(4096), expected(4096, std::byte{1});
  std::fill_n(expected.end() - 9, 9, std::byte{2});
  moeccl::gpu::cuda(
      cudaMemcpy(end.data(), target.data() + size - end.size(), end.size(), cudaMemcpyDeviceToHost),
      "copying out");
  expectSame(end, expected, "the end of a large copy");
}

GPU_TEST(copiesInAGraph) {
  const std::vector<int> values = {1, 2, 3, 4, 5};
  Device<int> source(values), target(values.size());
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  moeccl::gpu::cuda(cudaStreamCreate(&stream), "a stream");
  moeccl::gpu::cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  {  // the descriptors are gone when the graph runs
    const BlockCopy copy{reinterpret_cast<std::byte*>(target.data()),
                         0,
                         reinterpret_cast<const std::byte*>(source.data()),
                         0,
                         20,
                         1};
    moeccl::cuda::copyBlocks({&copy, 1}, stream);
  }
  moeccl::gpu::cuda(cudaStreamEndCapture(stream, &graph), "capturing");
  moeccl::gpu::cuda(cudaGraphInstantiate(&runnable, graph, 0), "a graph");
  moeccl::gpu::cuda(cudaGraphLaunch(runnable, stream), "a graph");
  expectSame(target.get("graph"), values, "a copy in a graph");
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace moeccl::gpu
