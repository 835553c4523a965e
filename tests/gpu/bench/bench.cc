// Captures work into graphs, replays them and prints their times.
#include "tests/gpu/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>

#include "kernels/small_float.h"
#include "tests/gpu/measurement.h"

namespace moeccl::gpu {
namespace {

// Several times the caches of all GPUs.
constexpr std::size_t kBeyondCaches = std::size_t{256} << 20;
constexpr int kMostTurns = 64;
constexpr double kMicrosecondsOfAReplay = 20000;

// A captured call, or several, that are replayed.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue) {
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      cudaGetLastError();
      throw;
    }
    cuda(cudaStreamEndCapture(stream, &graph), "the end of a capture");
    const cudaError_t status = cudaGraphInstantiate(&runnable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda(status, "a graph");
  }
  Graph(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(runnable_); }
  void replay(cudaStream_t stream) const { cuda(cudaGraphLaunch(runnable_, stream), "a replay"); }

 private:
  cudaGraphExec_t runnable_ = nullptr;
};

}  // namespace

Bench::Bench(const Options& options) : options_(options) {
  cuda(cudaStreamCreate(&stream_), "a stream");
  cuda(cudaEventCreate(&begin_), "an event");
  cuda(cudaEventCreate(&end_), "an event");
  std::printf("%-32s%-10s%8s%8s%6s%4s%12s%10s%10s%12s%8s\n", "kernel", "type", "tokens", "M", "E",
              "k", "us", "GB/s", "TFLOP/s", "a copy, us", "ratio");
}

Bench::~Bench() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

std::vector<std::int64_t> Bench::decoding() const {
  return quick() ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 16, 128};
}

std::vector<std::int64_t> Bench::tokens() const {
  std::vector<std::int64_t> all = decoding();
  all.push_back(training());
  return all;
}

int Bench::turnsOf(std::size_t bytes) const {
  if (quick() || options_.once) return 1;
  return static_cast<int>(
      std::clamp<std::size_t>(kBeyondCaches / std::max<std::size_t>(bytes, 1), 1, kMostTurns));
}

double Bench::timeOf(int calls, const std::function<void()>& enqueue) {
  cuda(cudaEventRecord(begin_, stream_), "an event");
  enqueue();
  cuda(cudaEventRecord(end_, stream_), "an event");
  cuda(cudaEventSynchronize(end_), "waiting");
  float ms = 0;
  cuda(cudaEventElapsedTime(&ms, begin_, end_), "a time");
  return 1e3 * static_cast<double>(ms) / calls;
}

double Bench::microseconds(int turns, bool captured, const Work& work) {
  const auto one = [&] { work(0, stream_); };
  double estimate = timeOf(1, one);  // which loads the kernels, too
  if (options_.once) return estimate;
  if (!quick()) estimate = timeOf(1, one);
  const int calls =
      quick() ? 2
              : static_cast<int>(std::clamp(kMicrosecondsOfAReplay / std::max(estimate, 1.0), 1.0,
                                            static_cast<double>(std::max(turns, 20))));
  const auto all = [&] {
    for (int call = 0; call < calls; ++call) work(call % turns, stream_);
  };
  std::function<void()> enqueue = all;
  if (captured) {
    const auto graph = std::make_shared<Graph>(stream_, all);
    enqueue = [this, graph] { graph->replay(stream_); };
  }
  timeOf(calls, enqueue);
  std::vector<double> times(quick() ? 1 : 9);
  for (double& time : times) time = timeOf(calls, enqueue);
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

double Bench::copyOf(double bytes, int turns) {
  const auto half = static_cast<std::int64_t>(bytes / 2);
  Turns<std::byte> from(turns, half), to(turns, half);
  return microseconds(turns, true, [&](int turn, cudaStream_t stream) {
    cuda(cudaMemcpyAsync(to.of(turn), from.of(turn), static_cast<std::size_t>(half),
                         cudaMemcpyDeviceToDevice, stream),
         "a copy");
  });
}

void Bench::measure(const Case& what, int turns, const Work& work) {
  const auto& [tokens, embedding, experts, choices] = what.sizes;
  std::printf("%-32s%-10s%8lld%8lld%6d%4d", what.kernel.c_str(), what.type.c_str(),
              static_cast<long long>(tokens), static_cast<long long>(embedding), experts, choices);
  std::fflush(stdout);
  try {
    const double us = microseconds(turns, what.captured, work);
    const bool moves = what.bytes > 0 && what.flops == 0;
    const double copy = moves ? copyOf(what.bytes, turns) : 0;
    std::printf("%12.2f%10.0f%10.1f", us, what.bytes / us * 1e-3, what.flops / us * 1e-6);
    if (moves) std::printf("%12.2f%8.2f", copy, copy / us);
    std::printf("\n");
    std::vector<Field> fields{
        {"kernel", what.kernel}, {"type", what.type},  {"tokens", tokens}, {"embedding", embedding},
        {"experts", experts},    {"choices", choices}, {"us", us},         {"bytes", what.bytes},
        {"flops", what.flops}};
    if (moves) fields.emplace_back("copy_us", copy);
    record(fields);
  } catch (const std::exception& error) {
    failed_ = true;
    std::printf("  failed: %s\n", error.what());
  }
  std::fflush(stdout);
}

void Bench::measureCopy() {
  const double bytes = quick() ? 1 << 16 : 2e9;
  const double us = copyOf(bytes, 1);
  std::printf("a copy: %.0f GB/s read and written\n", bytes / us * 1e-3);
  record({{"ceiling", std::string("copy")}, {"rate", bytes / us * 1e6}});
}

void fillRandomly(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kMost = 1 << 20;
  Random random(1);
  std::vector<std::uint16_t> few(std::min(bytes, kMost) / 2);
  std::uniform_real_distribution<float> between(-1, 1);
  for (std::uint16_t& value : few) value = Bfloat16::encode(between(random));
  auto* const at = static_cast<std::byte*>(memory);
  std::size_t done = few.size() * 2;
  cuda(cudaMemcpy(at, few.data(), done, cudaMemcpyHostToDevice), "random numbers");
  for (; done < bytes; done *= 2)
    cuda(cudaMemcpy(at + done, at, std::min(done, bytes - done), cudaMemcpyDeviceToDevice),
         "random numbers");
}

Routing::Routing(const Sizes& sizes) {
  Random random(1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(sizes.experts));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::int64_t> used(order.size());
  for (std::int64_t token = 0; token < sizes.tokens; ++token)
    for (std::int32_t choice = 0; choice < sizes.choices; ++choice) {
      const auto at = static_cast<std::size_t>(choice);
      std::swap(order[at], order[at + random() % (order.size() - at)]);
      experts.push_back(order[at]);
      slots.push_back(used[static_cast<std::size_t>(order[at])]++);
      weights.push_back(1.0f / static_cast<float>(sizes.choices));
    }
  stride = *std::ranges::max_element(used);
}

}  // namespace moeccl::gpu
