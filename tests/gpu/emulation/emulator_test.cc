// What the emulation gives to kernels, and that it finds what it is there to find.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace moeccl::emulation {
namespace {

constexpr Order kOrders[] = {Order::rising, Order::falling, Order::random};
constexpr unsigned kAll = ~0u;

int lane() { return static_cast<int>(threadIdx.x % warpSize); }

void sumOfBlock(const int* values, int* sums) {
  __shared__ int partial[8];
  int sum = values[blockIdx.x * blockDim.x + threadIdx.x];
  for (int apart = warpSize / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(kAll, sum, apart);
  if (lane() == 0) partial[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = std::accumulate(partial, partial + 8, 0);
  __syncthreads();
}

TEST(Emulator, BlocksSumWhatTheyHave) {
  constexpr int kBlocks = 5, kThreads = 256;
  std::vector<int> values(kBlocks * kThreads), sums(kBlocks), expected(kBlocks);
  std::iota(values.begin(), values.end(), 0);
  for (int i = 0; i < kBlocks * kThreads; ++i) expected[i / kThreads] += values[i];
  for (Order order : kOrders) {
    setOrder(order, 1);
    std::fill(sums.begin(), sums.end(), -1);
    EXPECT_EQ(run(kBlocks, kThreads, [&] { sumOfBlock(values.data(), sums.data()); }), "");
    EXPECT_EQ(sums, expected);
  }
}

// Every block has memory of its own that nobody has written to.
TEST(Emulator, BlocksHaveTheMemoryThatTheLaunchGives) {
  constexpr int kBlocks = 3, kThreads = 64;
  std::vector<unsigned char> first(kBlocks * kThreads), then(first.size());
  EXPECT_EQ(run(
                kBlocks, kThreads,
                [&] {
                  auto* const mine = reinterpret_cast<unsigned char*>(sharedMemory());
                  const unsigned at = blockIdx.x * kThreads + threadIdx.x;
                  first[at] = mine[threadIdx.x];
                  mine[threadIdx.x] = static_cast<unsigned char>(at);
                  __syncthreads();
                  then[at] = mine[kThreads - 1 - threadIdx.x];
                },
                kThreads),
            "");
  EXPECT_EQ(first, std::vector<unsigned char>(first.size(), 0xa7));
  for (int at = 0; at < kBlocks * kThreads; ++at)
    EXPECT_EQ(then[at], at / kThreads * kThreads + kThreads - 1 - at % kThreads);
}

TEST(Emulator, ThreadsKnowWhereTheyAre) {
  std::vector<int> seen(2 * 3 * 4 * 5 * 2 * 3);
  EXPECT_EQ(run({2, 3, 4}, {5, 2, 3},
                [&] {
                  const unsigned block =
                      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
                  const unsigned thread =
                      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
                  ++seen[block * 30 + thread];
                }),
            "");
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(Emulator, LanesReadWhatOthersHave) {
  std::vector<std::string> wrong;
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) wrong.push_back(what + std::to_string(lane()));
  };
  for (Order order : kOrders) {
    setOrder(order, 2);
    EXPECT_EQ(
        run(1, 64,
            [&] {
              const int own = lane(), value = 100 + own;
              expect(__shfl_sync(kAll, value, 7) == 107, "shfl ");
              expect(__shfl_sync(kAll, value, 3, 8) == 103 + own / 8 * 8, "shfl of 8 ");
              expect(__shfl_xor_sync(kAll, value, 5) == 100 + (own ^ 5), "xor ");
              expect(__shfl_up_sync(kAll, value, 3u) == (own < 3 ? value : value - 3), "up ");
              expect(__shfl_down_sync(kAll, value, 3u) == (own > 28 ? value : value + 3), "down ");
              expect(__shfl_down_sync(kAll, value, 1u, 4) == (own % 4 == 3 ? value : value + 1),
                     "down of 4 ");
              expect(__shfl_xor_sync(kAll, 0.5 * own, 1) == 0.5 * (own ^ 1), "double ");
              expect(__ballot_sync(kAll, own % 3 == 0) == 0x49249249, "ballot ");
              expect(__any_sync(kAll, own == 31) == 1, "any ");
              expect(__all_sync(kAll, own < 31) == 0, "all ");
              expect(__match_any_sync(kAll, own % 8) == 0x01010101u << own % 8, "match ");
              if (own < 4)  // some lanes alone
                expect(__ballot_sync(0xf, own == 2) == 4, "ballot of 4 ");
              else
                expect(__shfl_sync(~0xfu, value, 20) == 120, "shfl of 28 ");
            }),
        "");
  }
  EXPECT_EQ(wrong, std::vector<std::string>{});
}

// The order of threads shows that a barrier is missing.
TEST(Emulator, WhatIsReadTooEarlyDiffersByOrder) {
  const auto reversed = [](bool barrier) {
    static int shared[64];
    std::vector<std::vector<int>> results;
    for (Order order : kOrders) {
      setOrder(order, 3);
      std::vector<int> result(64);
      std::fill(std::begin(shared), std::end(shared), -1);
      EXPECT_EQ(run(1, 64,
                    [&] {
                      shared[threadIdx.x] = static_cast<int>(threadIdx.x);
                      if (barrier) __syncthreads();
                      result[threadIdx.x] = shared[63 - threadIdx.x];
                    }),
                "");
      results.push_back(result);
    }
    return results;
  };
  const auto with = reversed(true), without = reversed(false);
  EXPECT_EQ(with[0], with[1]);
  EXPECT_EQ(with[0], with[2]);
  EXPECT_EQ(with[0][5], 58);
  EXPECT_NE(without[0], without[1]);
}

std::string problemOf(const std::function<void()>& kernel, dim3 threads = 64) {
  std::string first;
  for (Order order : kOrders) {
    setOrder(order, 4);
    const std::string problem = run(2, threads, kernel);
    EXPECT_NE(problem, "");
    if (first.empty()) first = problem;
  }
  // A broken kernel leaves nothing behind.
  EXPECT_EQ(run(1, 64, [] { __syncthreads(); }), "");
  return first;
}

void expectText(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Emulator, BarriersThatNotAllReach) {
  const std::string returned = problemOf([] {
    if (threadIdx.x == 40) return;
    __syncthreads();
  });
  expectText(returned, "__syncthreads of thread (0, 0, 0) of block (0, 0, 0)");
  expectText(returned, "is not reached by thread (40, 0, 0)");
  expectText(returned, "has returned");
  expectText(returned, "emulator_test.cc");
  problemOf([] {
    if (threadIdx.x < 7)
      __syncthreads();
    else
      __syncthreads();
  });
  problemOf([] {
    if (threadIdx.x < 32)
      __syncthreads();
    else
      __syncwarp();
  });
  expectText(problemOf([] {
               if (threadIdx.x != 3) __syncwarp();
             }),
             "of lanes 0xffffffff, is not reached by thread (3, 0, 0)");
}

TEST(Emulator, ShufflesThatNotAllReach) {
  problemOf([] {
    if (lane() < 16) __shfl_sync(kAll, 1, 0);
  });
  expectText(problemOf([] { __ballot_sync(0xff, 1); }), "without its own");
  expectText(problemOf([] { __shfl_sync(1u << lane(), 1, lane() ^ 1); }), "not in the mask");
  // Lanes that disagree on who takes part.
  problemOf([] { __shfl_xor_sync(lane() < 16 ? kAll : 0xffff0000, 1, 1); });
  // The last warp is short.
  expectText(problemOf([] { __syncwarp(); }, 40), "is not reached by lane 8");
}

// ---- the runtime ----

void addOne(int* at, int count) {
  for (unsigned i = blockIdx.x; i < static_cast<unsigned>(count); i += gridDim.x) ++at[i];
}

cudaError_t launchOn(dim3 blocks, dim3 threads, int* at, int count, cudaStream_t stream = nullptr) {
  void* parameters[] = {&at, &count};
  return cudaLaunchKernel(addOne, blocks, threads, parameters, 0, stream);
}

TEST(EmulatedRuntime, WorkIsDoneWhenSomebodyWaits) {
  int value = 0;
  EXPECT_EQ(launchOn(1, 1, &value, 1), cudaSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(value, 1);
}

TEST(EmulatedRuntime, GraphsRunWhenTheyAreLaunched) {
  int value = 0;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  cudaStreamCreate(&stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  launchOn(1, 1, &value, 1, stream);
  cudaDeviceSynchronize();
  EXPECT_EQ(value, 0);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&runnable, graph, 0);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(runnable, stream);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(value, 3);
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(EmulatedRuntime, LaunchesThatNoGpuTakesAreRefused) {
  int value = 0;
  for (dim3 blocks : {dim3(0), dim3(1, 65536), dim3(1, 1, 65536), dim3(1u << 31)})
    EXPECT_EQ(launchOn(blocks, 1, &value, 1), cudaErrorInvalidConfiguration);
  for (dim3 threads : {dim3(0), dim3(1025), dim3(32, 64), dim3(1, 1, 65)})
    EXPECT_EQ(launchOn(1, threads, &value, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedRuntime, WhoWaitsIsToldWhatAKernelDoesWrong) {
  void (*const kernel)() = [] {
    if (threadIdx.x == 0) __syncthreads();
  };
  cudaLaunchKernel(kernel, 1, 2, nullptr, 0, nullptr);
  const cudaError_t status = cudaDeviceSynchronize();
  EXPECT_EQ(status, cudaErrorLaunchFailure);
  expectText(cudaGetErrorString(status), "is not reached by thread (1, 0, 0)");
  EXPECT_EQ(cudaGetLastError(), status);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace moeccl::emulation
