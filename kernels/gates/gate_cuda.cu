#include <algorithm>

#include "kernels/capacity.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/gates/logits_tile.h"
#include "kernels/gates/passes.h"
#include "kernels/launch_cuda.h"
#include "kernels/warp_cuda.h"

namespace moeccl::cuda {
namespace {

using namespace gates;

constexpr std::int64_t kWarps = kThreads / Warp::kCount;
// Each with memory of its own; more would only wait for the others.
constexpr std::int64_t kMostWarps = 4096;

__device__ std::int64_t warpInGrid() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / Warp::kCount;
}
__device__ std::int64_t threadInGrid() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

unsigned warpGrid(std::int64_t warps) {
  return gridOf(static_cast<std::uint64_t>((warps + kWarps - 1) / kWarps));
}
unsigned threadGrid(std::int64_t threads) {
  return gridOf(static_cast<std::uint64_t>((threads + kThreads - 1) / kThreads));
}

template <typename Tile>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    logitsKernel(const __grid_constant__ LogitsProblem problem) {
  __shared__ Tile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t token = std::int64_t{blockIdx.x} * Tile::kTokens;
  const std::int64_t expert = std::int64_t{blockIdx.y} * Tile::kExperts;
  typename Tile::Sums sums = {};
  typename Tile::Fetched next = Tile::fetch(problem, token, expert, 0, thread);
  for (std::int64_t m = 0; m < problem.embedding; m += Tile::kDepth) {
    __syncthreads();
    tile.put(next, thread);
    __syncthreads();
    if (m + Tile::kDepth < problem.embedding)
      next = Tile::fetch(problem, token, expert, m + Tile::kDepth, thread);
    tile.multiply(thread, sums);
  }
  Tile::store(problem, token, expert, thread, sums);
}

// The memory of the warps, one after another.
template <typename Rule>
struct AllMemory {
  double* doubles;
  std::int32_t* ints;
  std::int64_t ruleDoubles, warpDoubles, warpInts;
  std::int32_t width;

  AllMemory(const Config& config, double* doubles, std::int32_t* ints)
      : doubles(doubles),
        ints(ints),
        ruleDoubles(Rule::doubles(config)),
        warpDoubles(gates::warpDoubles<Rule>(config)),
        warpInts(Rule::ints(config)),
        width(gates::width(config)) {}

  __device__ WarpMemory of(std::int64_t warp) const {
    double* const first = doubles + warp * warpDoubles;
    return {{first, ints + warp * warpInts}, first + ruleDoubles, first + ruleDoubles + width};
  }
};

template <typename Rule>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    chooseKernel(const __grid_constant__ GatePass pass,
                 const __grid_constant__ AllMemory<Rule> memory, std::int32_t* chosen,
                 float* weights, double* rowSums) {
  const WarpMemory mine = memory.of(warpInGrid());
  for (std::int64_t row = warpInGrid(); row < pass.rows.count(); row += gridDim.x * kWarps)
    chooseRow<Rule>(Warp{}, pass, mine, row, chosen, weights,
                    rowSums + row * 3 * pass.config.experts);
}

__global__ void __launch_bounds__(kThreads)
    addRowsKernel(TokenRows rows, std::int64_t experts, std::int64_t items, const double* rowSums,
                  double* sums) {
  for (std::int64_t item = warpInGrid(); item < items; item += gridDim.x * kWarps)
    addRows(Warp{}, rows, experts, rowSums, item, sums);
}

__global__ void __launch_bounds__(kThreads)
    addUsedKernel(const std::int64_t* used, std::int64_t groups, std::int64_t experts,
                  bool expertsChoose, double* sums) {
  for (std::int64_t e = threadInGrid(); e < experts; e += std::int64_t{gridDim.x} * kThreads) {
    double count = 0;
    for (std::int64_t group = 0; group < groups; ++group)
      count += static_cast<double>(used[group * experts + e]);
    sums[experts + e] += count;
    if (expertsChoose) sums[e] += count;
  }
}

__global__ void __launch_bounds__(kThreads)
    chooseTokensKernel(Config config, std::int64_t tokens, std::int64_t groups,
                       std::int32_t* chosen, float* weights, std::int64_t* used,
                       std::int64_t* slots) {
  for (std::int64_t i = warpInGrid(); i < groups * config.experts; i += gridDim.x * kWarps)
    chooseTokens(Warp{}, config, tokens, i / config.experts, i % config.experts, chosen, weights,
                 used, slots);
}

// By one warp.
template <typename Rule>
__global__ void lossKernel(Config config, const double* sums, double scale, std::int64_t size,
                           double* dSums, double* loss) {
  each(Warp{}, size, [&](std::int64_t i) { dSums[i] = 0; });
  Warp::sync();
  double value = 0;
  if (config.batchTokens > 0) {
    const std::int64_t terms = termsAt(config, 0);
    value = Rule::loss(Warp{}, config, sums + terms, scale, dSums + terms);
  }
  if (loss != nullptr && Warp::index() == 0) *loss = value;
}

template <typename Rule>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    differentiateKernel(const __grid_constant__ GatePass pass,
                        const __grid_constant__ AllMemory<Rule> memory, const std::int32_t* chosen,
                        const float* dWeights, const double* dSums, float* dGate, float* dNoise) {
  const WarpMemory mine = memory.of(warpInGrid());
  for (std::int64_t token = warpInGrid(); token < pass.rows.tokens; token += gridDim.x * kWarps)
    differentiateToken<Rule>(Warp{}, pass, mine, pass.rows.first + token, chosen, dWeights, dSums,
                             dGate, dNoise);
}

__global__ void __launch_bounds__(kThreads)
    jitterKernel(const __grid_constant__ LogitsProblem problem, float* jittered, float* cleared) {
  const std::int64_t count = problem.tokens * problem.embedding;
  for (std::int64_t at = threadInGrid(); at < count; at += std::int64_t{gridDim.x} * kThreads) {
    jittered[at] = problem.inputAt(at / problem.embedding, at % problem.embedding);
    cleared[at] = 0;
  }
}

// dInput += dJittered times what the inputs were multiplied with.
__global__ void __launch_bounds__(kThreads)
    jitterBackwardKernel(const __grid_constant__ LogitsProblem problem, const float* dJittered,
                         float* dInput) {
  LogitsProblem gradients = problem;
  gradients.input = dJittered;
  const std::int64_t count = problem.tokens * problem.embedding;
  for (std::int64_t at = threadInGrid(); at < count; at += std::int64_t{gridDim.x} * kThreads)
    dInput[at] += gradients.inputAt(at / problem.embedding, at % problem.embedding);
}

LogitsProblem logitsProblem(const Config& config, const float* weights, const Part<float>& part,
                            double* logits) {
  return {part.input,
          weights,
          part.tokens,
          config.embedding,
          config.experts,
          logits,
          logitsPerToken(config),
          part.draw && hasJitter(config) ? config.jitter : 0,
          part.firstToken,
          Random(part.draw.value_or(Draw{}))};
}

GatePass gatePass(const Config& config, const Parameters<float>& parameters,
                  const Part<float>& part, const double* logits) {
  return {config,
          tokenRows(config, part.firstToken, part.tokens),
          width(config),
          logitsPerToken(config),
          logits,
          parameters.bias,
          part.draw.has_value(),
          Random(part.draw.value_or(Draw{}))};
}

CapacityShape capacityShape(const Config& config) {
  return {config.experts, config.choices, config.capacityTokens, config.capacitySlots};
}

}  // namespace

Gate::Gate(const Config& config, std::int64_t tokens, std::int64_t groups)
    : config_(config), tokens_(tokens) {
  const std::size_t placing = config.kind == Kind::expertChoice
                                  ? 0
                                  : assignSlotsWorkspace(capacityShape(config), tokens, groups);
  workspaceBytes_ = std::max(memory(nullptr).bytes, placing);
}

Gate::Memory Gate::memory(std::byte* workspace) const {
  constexpr std::size_t kAlignment = 256;
  std::size_t used = 0;
  const auto take = [&]<typename T>(T*& at, std::int64_t count) {
    at = workspace == nullptr ? nullptr : reinterpret_cast<T*>(workspace + used);
    used +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  };
  Memory memory{};
  const std::int64_t warps = std::min(kMostWarps, (tokens_ + kWarps) / kWarps * kWarps);
  const std::int64_t perExpert = tokens_ * config_.experts;
  const std::int64_t jittered = hasJitter(config_) ? tokens_ * config_.embedding : 0;
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    take(memory.doubles, warps * warpDoubles<Rule>(config_));
    take(memory.ints, warps * Rule::ints(config_));
  });
  take(memory.rowSums, mostTokenRows(config_, tokens_) * 3 * config_.experts);
  take(memory.dGate, perExpert);
  take(memory.dNoise, config_.kind == Kind::noisy ? perExpert : 0);
  take(memory.jittered, jittered);
  take(memory.dJittered, jittered);
  memory.bytes = used;
  return memory;
}

void Gate::computeLogits(const Parameters<float>& parameters, const Part<float>& part,
                         double* logits, void* stream) const {
  if (part.tokens == 0) return;
  const auto multiply = [&](const float* weights, double* to) {
    const LogitsProblem problem = logitsProblem(config_, weights, part, to);
    withLogitsTile(config_.experts, [&]<typename Tile>() {
      const dim3 grid(gridOf((part.tokens - 1) / Tile::kTokens + 1),
                      gridOf((config_.experts - 1) / Tile::kExperts + 1));
      launchKernel("computing logits", logitsKernel<Tile>, grid, kThreads, stream, problem);
    });
  };
  multiply(parameters.gate, logits);
  if (config_.kind == Kind::noisy) multiply(parameters.noise, logits + config_.experts);
}

void Gate::choose(const Parameters<float>& parameters, const Part<float>& part,
                  const Decisions<float>& decisions, double* sums, std::span<std::byte> workspace,
                  void* stream) const {
  if (part.tokens == 0) return;
  const GatePass pass = gatePass(config_, parameters, part, decisions.logits);
  const Memory all = memory(workspace.data());
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    const AllMemory<Rule> warps(config_, all.doubles, all.ints);
    launchKernel("choosing experts", chooseKernel<Rule>,
                 warpGrid(std::min(kMostWarps, pass.rows.count())), kThreads, stream, pass, warps,
                 decisions.chosen, decisions.weights, all.rowSums);
  });
  const std::int64_t items = rowSumItems(pass.rows, config_.experts);
  launchKernel("adding up choices", addRowsKernel, warpGrid(items), kThreads, stream, pass.rows,
               config_.experts, items, all.rowSums, sums);
}

void Gate::forward(const Parameters<float>& parameters, const Part<float>& part,
                   const Decisions<float>& decisions, double* sums, std::span<std::byte> workspace,
                   void* stream) const {
  computeLogits(parameters, part, decisions.logits, stream);
  choose(parameters, part, decisions, sums, workspace, stream);
}

void Gate::place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, float* weights,
                 std::int64_t* used, std::int64_t* slots, double* sums,
                 std::span<std::byte> workspace, void* stream) const {
  if (groups == 0) return;
  const bool expertsChoose = config_.kind == Kind::expertChoice;
  if (expertsChoose)
    launchKernel("choosing tokens", chooseTokensKernel, warpGrid(groups * config_.experts),
                 kThreads, stream, config_, tokens, groups, chosen, weights, used, slots);
  else
    assignSlots(capacityShape(config_), chosen, tokens, groups, used, slots, workspace, stream);
  launchKernel("adding up places", addUsedKernel, threadGrid(config_.experts), kThreads, stream,
               used, groups, config_.experts, expertsChoose, sums);
}

void Gate::loss(const double* sums, double scale, double* dSums, double* loss, void* stream) const {
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    launchKernel("computing a gate's loss", lossKernel<Rule>, 1, Warp::kCount, stream, config_,
                 sums, scale, sumsSize(config_), dSums, loss);
  });
}

void Gate::backward(const Parameters<float>& parameters, const Part<float>& part,
                    const double* logits, const std::int32_t* chosen, const float* dWeights,
                    const double* dSums, const Gradients<float>& gradients, Blas& blas,
                    std::span<std::byte> workspace, void* stream) const {
  if (part.tokens == 0) return;
  const GatePass pass = gatePass(config_, parameters, part, logits);
  const Memory all = memory(workspace.data());
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    const AllMemory<Rule> warps(config_, all.doubles, all.ints);
    launchKernel("differentiating a gate", differentiateKernel<Rule>,
                 warpGrid(std::min(kMostWarps, part.tokens)), kThreads, stream, pass, warps, chosen,
                 dWeights, dSums, all.dGate, all.dNoise);
  });
  const LogitsProblem problem = logitsProblem(config_, parameters.gate, part, nullptr);
  const bool jitter = problem.jitter > 0;
  const unsigned grid = threadGrid(part.tokens * config_.embedding);
  if (jitter)
    launchKernel("making a gate's jitter", jitterKernel, grid, kThreads, stream, problem,
                 all.jittered, all.dJittered);
  const auto add = [&](const float* dLogits, const float* weights, float* wanted) {
    if (wanted != nullptr)
      blas.multiply(moecclFloat32,
                    {.transpose = Transpose::first,
                     .rows = config_.embedding,
                     .columns = config_.experts,
                     .inner = part.tokens,
                     .a = jitter ? all.jittered : part.input,
                     .b = dLogits,
                     .c = wanted,
                     .adds = true},
                    stream);
    blas.multiply(moecclFloat32,
                  {.transpose = Transpose::second,
                   .rows = part.tokens,
                   .columns = config_.embedding,
                   .inner = config_.experts,
                   .a = dLogits,
                   .b = weights,
                   .c = jitter ? all.dJittered : gradients.input,
                   .adds = true},
                  stream);
  };
  add(all.dGate, parameters.gate, gradients.gate);
  if (config_.kind == Kind::noisy) add(all.dNoise, parameters.noise, gradients.noise);
  if (!jitter) return;
  launchKernel("differentiating jitter", jitterBackwardKernel, grid, kThreads, stream, problem,
               all.dJittered, gradients.input);
}

}  // namespace moeccl::cuda
