// Runs a gate on a GPU: a block for a tile of logits, a warp for each token's rule, sums in a fixed
// order. Backward, gradients go through cuBLAS, in float32.
#include <algorithm>

#include "kernels/capacity.h"
#include "kernels/float_formats.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/gates/logits_tile.h"
#include "kernels/gates/passes.h"
#include "kernels/launch_cuda.h"
#include "kernels/narrow.h"
#include "kernels/runtime_cuda.h"
#include "kernels/warp_cuda.h"
#include "src/base/round_up.h"

namespace moeccl::cuda {
namespace {

using namespace gates;

constexpr std::int64_t kWarps = kThreads / Warp::kCount;
// Shared memory that all GPUs let a block have without asking.
constexpr std::int64_t kSharedBytes = std::int64_t{48} << 10;
// The most blocks where memory of tokens is not shared: more would only wait for the others.
constexpr std::int64_t kMostBlocks = 256;
// Tokens that are made float32 together.
constexpr std::int64_t kStagedTokens = 1024;

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

template <typename Tile, typename Format>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    logitsKernel(const __grid_constant__ LogitsProblem<Format> problem) {
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

// All threads of a block, in step where it is synchronised.
struct Block {
  static constexpr int kCount = kThreads;
  __device__ static int index() { return static_cast<int>(threadIdx.x); }
};

// The memory of a block: of one token for each warp that is at work, before them sums [3][experts]
// where it chooses. It is shared where there is room for one warp's, else a piece of the workspace.
struct BlockMemory {
  TokenMemories tokens;
  std::int64_t sumsBytes, warps;
  std::byte* workspace;  // null: shared

  template <typename Rule>
  static BlockMemory of(const Config& config, bool differentiates, std::byte* workspace) {
    BlockMemory memory{tokenMemories<Rule>(config, differentiates),
                       differentiates ? 0 : 3 * std::int64_t{config.experts} * 8, kWarps, nullptr};
    while (memory.warps > 1 && memory.bytes() > kSharedBytes) memory.warps /= 2;
    if (memory.bytes() <= kSharedBytes) return memory;
    memory.warps = kWarps;
    memory.workspace = workspace;
    return memory;
  }
  std::int64_t bytes() const { return sumsBytes + warps * tokens.bytes; }
  std::int64_t sharedBytes() const { return bytes() <= kSharedBytes ? bytes() : 0; }
  std::int64_t workspaceBytes(std::int64_t blocks) const {
    return std::min(kMostBlocks, blocks) * (bytes() - sharedBytes());
  }
  unsigned grid(std::int64_t blocks) const {
    return gridOf(
        static_cast<std::uint64_t>(sharedBytes() > 0 ? blocks : std::min(kMostBlocks, blocks)));
  }
  __device__ std::byte* get() const {
    return workspace == nullptr ? sharedMemory()
                                : workspace + blockIdx.x * (sumsBytes + warps * tokens.bytes);
  }
};

// A block decides for the tokens of a row, a warp for one at a time, and makes the row's sums.
template <typename Rule>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    chooseKernel(const __grid_constant__ GatePass pass, const __grid_constant__ BlockMemory memory,
                 std::int32_t* chosen, float* weights, double* rowSums) {
  const std::int64_t items = 3 * std::int64_t{pass.config.experts},
                     warp = threadIdx.x / Warp::kCount;
  std::byte* const mine = memory.get();
  std::byte* const ofTokens = mine + memory.sumsBytes;
  auto* const sums = reinterpret_cast<double*>(mine);
  for (std::int64_t row = blockIdx.x; row < pass.rows.count(); row += gridDim.x) {
    each(Block{}, items, [&](std::int64_t i) { sums[i] = 0; });
    const std::int64_t end = pass.rows.end(row);
    for (std::int64_t token = pass.rows.begin(row); token < end; token += memory.warps) {
      __syncthreads();
      if (warp < memory.warps && token + warp < end)
        chooseToken<Rule>(Warp{}, pass, memory.tokens.of(ofTokens, warp), token + warp, chosen,
                          weights);
      __syncthreads();
      for (std::int64_t next = token; next < end && next < token + memory.warps; ++next)
        addToken<Rule>(Block{}, pass, memory.tokens.of(ofTokens, next - token), next, chosen, sums);
    }
    __syncthreads();
    each(Block{}, items, [&](std::int64_t i) { rowSums[row * items + i] = sums[i]; });
  }
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
    renormalizeKernel(double sum, std::int64_t tokens, std::int64_t width,
                      const std::int64_t* slots, float* weights, double* factors) {
  for (std::int64_t t = threadInGrid(); t < tokens; t += std::int64_t{gridDim.x} * kThreads)
    factors[t] = renormalizeToken(sum, width, slots + t * width, weights + t * width);
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
                        const __grid_constant__ BlockMemory memory, const std::int32_t* chosen,
                        const float* dWeights, const double* dSums, float* dGate, float* dNoise) {
  const std::int64_t warp = threadIdx.x / Warp::kCount;
  const TokenMemory mine = memory.tokens.of(memory.get(), warp);
  for (std::int64_t token = blockIdx.x * memory.warps + warp; token < pass.rows.tokens;
       token += gridDim.x * memory.warps)
    differentiateToken<Rule>(Warp{}, pass, mine, pass.rows.first + token, chosen, dWeights, dSums,
                             dGate, dNoise);
}

// staged: the inputs as they are multiplied.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    stageKernel(const __grid_constant__ LogitsProblem<Format> problem, float* staged,
                float* cleared) {
  const std::int64_t count = problem.tokens * problem.embedding;
  for (std::int64_t at = threadInGrid(); at < count; at += std::int64_t{gridDim.x} * kThreads) {
    staged[at] = problem.inputAt(at / problem.embedding, at % problem.embedding);
    cleared[at] = 0;
  }
}

// dInput += dStaged times what the inputs were multiplied with.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    unstageKernel(const __grid_constant__ LogitsProblem<Format> problem, const float* dStaged,
                  typename Format::Bits* dInput) {
  const std::int64_t count = problem.tokens * problem.embedding;
  for (std::int64_t at = threadInGrid(); at < count; at += std::int64_t{gridDim.x} * kThreads)
    dInput[at] = Format::encode(
        Format::decode(dInput[at]) +
        problem.jittered(dStaged[at], at / problem.embedding, at % problem.embedding));
}

bool jitters(const Config& config, const Part<void>& part) {
  return part.draw && hasJitter(config);
}

template <typename Format>
LogitsProblem<Format> logitsProblem(const Config& config, const void* weights,
                                    const Part<void>& part, double* logits) {
  using Bits = typename Format::Bits;
  return {static_cast<const Bits*>(part.input),
          static_cast<const Bits*>(weights),
          part.tokens,
          config.embedding,
          config.experts,
          logits,
          logitsPerToken(config),
          jitters(config, part) ? config.jitter : 0,
          part.firstToken,
          Random(part.draw.value_or(Draw{}))};
}

GatePass gatePass(const Config& config, const double* bias, const Part<void>& part,
                  const double* logits) {
  return {config,
          tokenRows(config, part.firstToken, part.tokens),
          width(config),
          logitsPerToken(config),
          logits,
          bias,
          part.draw.has_value(),
          Random(part.draw.value_or(Draw{}))};
}

CapacityShape capacityShape(const Config& config) {
  return {config.experts, config.choices, config.capacityTokens, config.capacitySlots};
}

}  // namespace

Gate::Gate(const Config& config, moecclDataType_t datatype, std::int64_t tokens,
           std::int64_t groups)
    : config_(config), datatype_(datatype), tokens_(tokens) {
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
    used += roundUp(static_cast<std::size_t>(count) * sizeof(T), kAlignment);
  };
  Memory memory{};
  const std::int64_t perExpert = tokens_ * config_.experts;
  const bool noisy = config_.kind == Kind::noisy;
  const std::int64_t staged =
      isNarrow() || hasJitter(config_) ? std::min(tokens_, kStagedTokens) * config_.embedding : 0;
  const std::int64_t matrix = isNarrow() ? config_.embedding * config_.experts : 0;
  const std::int64_t rows = mostTokenRows(config_, tokens_);
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    const auto bytes = [&](bool differentiates) {
      return BlockMemory::of<Rule>(config_, differentiates, nullptr).workspaceBytes(rows);
    };
    take(memory.ofBlocks, std::max(bytes(false), bytes(true)));
  });
  take(memory.rowSums, rows * 3 * config_.experts);
  take(memory.dGate, perExpert);
  take(memory.dNoise, noisy ? perExpert : 0);
  take(memory.staged, staged);
  take(memory.dStaged, staged);
  for (float** const wide : {&memory.gate, &memory.gateSums}) take(*wide, matrix);
  for (float** const wide : {&memory.noise, &memory.noiseSums}) take(*wide, noisy ? matrix : 0);
  take(memory.dWeights, isNarrow() ? tokens_ * width(config_) : 0);
  memory.bytes = used;
  return memory;
}

void Gate::computeLogits(const Parameters<void>& parameters, const Part<void>& part, double* logits,
                         void* stream) const {
  if (part.tokens == 0) return;
  const auto multiply = [&](const void* weights, double* to) {
    withFloatFormat("tokens", datatype_, [&]<typename Format>(Format) {
      const auto problem = logitsProblem<Format>(config_, weights, part, to);
      withLogitsTile(config_.experts, [&]<typename Tile>() {
        const dim3 grid(gridOf((part.tokens - 1) / Tile::kTokens + 1),
                        gridOf((config_.experts - 1) / Tile::kExperts + 1));
        launchKernel("computing logits", logitsKernel<Tile, Format>, grid, kThreads, stream,
                     problem);
      });
    });
  };
  multiply(parameters.gate, logits);
  if (config_.kind == Kind::noisy) multiply(parameters.noise, logits + config_.experts);
}

void Gate::choose(const Parameters<void>& parameters, const Part<void>& part,
                  const Decisions<float>& decisions, double* sums, std::span<std::byte> workspace,
                  void* stream) const {
  if (part.tokens == 0) return;
  const GatePass pass = gatePass(config_, parameters.bias, part, decisions.logits);
  const Memory all = memory(workspace.data());
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    const BlockMemory blocks = BlockMemory::of<Rule>(config_, false, all.ofBlocks);
    launchKernel("choosing experts", chooseKernel<Rule>, blocks.grid(pass.rows.count()),
                 {kThreads, blocks.sharedBytes()}, stream, pass, blocks, decisions.chosen,
                 decisions.weights, all.rowSums);
  });
  if (sums == nullptr) return;
  const std::int64_t items = rowSumItems(pass.rows, config_.experts);
  launchKernel("adding up choices", addRowsKernel, warpGrid(items), kThreads, stream, pass.rows,
               config_.experts, items, all.rowSums, sums);
}

void Gate::forward(const Parameters<void>& parameters, const Part<void>& part,
                   const Decisions<float>& decisions, double* sums, std::span<std::byte> workspace,
                   void* stream) const {
  computeLogits(parameters, part, decisions.logits, stream);
  choose(parameters, part, decisions, sums, workspace, stream);
}

void Gate::place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, float* weights,
                 std::int64_t* used, std::int64_t* slots, double* factors, double* sums,
                 std::span<std::byte> workspace, void* stream) const {
  if (groups == 0) return;
  const bool expertsChoose = config_.kind == Kind::expertChoice;
  if (expertsChoose)
    launchKernel("choosing tokens", chooseTokensKernel, warpGrid(groups * config_.experts),
                 kThreads, stream, config_, tokens, groups, chosen, weights, used, slots);
  else
    assignSlots(capacityShape(config_), chosen, tokens, groups, used, slots, workspace, stream);
  if (renormalizedSum(config_) > 0 && tokens > 0)
    launchKernel("renormalizing weights", renormalizeKernel, threadGrid(tokens), kThreads, stream,
                 renormalizedSum(config_), tokens, width(config_), slots, weights, factors);
  if (sums == nullptr) return;
  launchKernel("adding up places", addUsedKernel, threadGrid(config_.experts), kThreads, stream,
               used, groups, config_.experts, expertsChoose, sums);
}

void Gate::loss(const double* sums, double scale, double* dSums, double* loss, void* stream) const {
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    launchKernel("computing a gate's loss", lossKernel<Rule>, 1, Warp::kCount, stream, config_,
                 sums, scale, sumsSize(config_), dSums, loss);
  });
}

void Gate::backward(const Parameters<void>& parameters, const Part<void>& part,
                    const double* logits, const std::int32_t* chosen, const Kept<float>& kept,
                    const void* dWeights, const double* dSums, const Gradients<void>& gradients,
                    Blas& blas, std::span<std::byte> workspace, void* stream) const {
  if (part.tokens == 0) return;
  GatePass pass = gatePass(config_, parameters.bias, part, logits);
  pass.kept = kept;
  const Memory all = memory(workspace.data());
  const float* const wideWeights =
      widened(dWeights, part.tokens * width(config_), all.dWeights, stream);
  withRule(config_.kind, [&]<typename Rule>(Rule) {
    const BlockMemory blocks = BlockMemory::of<Rule>(config_, true, all.ofBlocks);
    launchKernel("differentiating a gate", differentiateKernel<Rule>,
                 blocks.grid((part.tokens - 1) / blocks.warps + 1),
                 {blocks.warps * Warp::kCount, blocks.sharedBytes()}, stream, pass, blocks, chosen,
                 wideWeights, dSums, all.dGate, all.dNoise);
  });
  const std::int64_t matrix = config_.embedding * config_.experts;
  const bool noisy = config_.kind == Kind::noisy;
  Matrix both[2] = {{all.dGate, widened(parameters.gate, matrix, all.gate, stream),
                     summed(gradients.gate, matrix, all.gateSums, stream)}};
  if (noisy)
    both[1] = {all.dNoise, widened(parameters.noise, matrix, all.noise, stream),
               summed(gradients.noise, matrix, all.noiseSums, stream)};
  const std::span<const Matrix> matrices(both, noisy ? 2 : 1);
  if (!isNarrow() && !jitters(config_, part)) {
    multiplyBackward(matrices, static_cast<const float*>(part.input), part.tokens, 0,
                     static_cast<float*>(gradients.input), blas, stream);
    return;
  }
  withFloatFormat("tokens", datatype_, [&]<typename Format>(Format) {
    using Bits = typename Format::Bits;
    for (std::int64_t begin = 0; begin < part.tokens; begin += kStagedTokens) {
      const std::int64_t count = std::min(kStagedTokens, part.tokens - begin);
      const auto problem =
          logitsProblem<Format>(config_, nullptr,
                                {static_cast<const Bits*>(part.input) + begin * config_.embedding,
                                 count, part.firstToken + begin, part.draw},
                                nullptr);
      const unsigned grid = threadGrid(count * config_.embedding);
      launchKernel("staging tokens", stageKernel<Format>, grid, kThreads, stream, problem,
                   all.staged, all.dStaged);
      multiplyBackward(matrices, all.staged, count, begin, all.dStaged, blas, stream);
      launchKernel("adding to gradients of tokens", unstageKernel<Format>, grid, kThreads, stream,
                   problem, all.dStaged,
                   static_cast<Bits*>(gradients.input) + begin * config_.embedding);
    }
  });
  if (!isNarrow()) return;
  const auto add = [&](const float* sums, void* wanted) {
    if (wanted != nullptr) addNarrowed(datatype_, sums, matrix, wanted, stream);
  };
  add(all.gateSums, gradients.gate);
  if (noisy) add(all.noiseSums, gradients.noise);
}

const float* Gate::widened(const void* from, std::int64_t count, float* room, void* stream) const {
  if (!isNarrow()) return static_cast<const float*>(from);
  widen(datatype_, from, count, room, stream);
  return room;
}

float* Gate::summed(void* wanted, std::int64_t count, float* room, void* stream) const {
  if (wanted == nullptr || !isNarrow()) return static_cast<float*>(wanted);
  clear(room, static_cast<std::size_t>(count) * sizeof(float), stream);
  return room;
}

void Gate::multiplyBackward(std::span<const Matrix> matrices, const float* input,
                            std::int64_t tokens, std::int64_t first, float* dInput, Blas& blas,
                            void* stream) const {
  for (const Matrix& matrix : matrices) {
    const float* const dLogits = matrix.dLogits + first * config_.experts;
    if (matrix.sums != nullptr)
      blas.multiply(moecclFloat32,
                    {.transpose = Transpose::first,
                     .rows = config_.embedding,
                     .columns = config_.experts,
                     .inner = tokens,
                     .a = input,
                     .b = dLogits,
                     .c = matrix.sums,
                     .adds = true},
                    stream);
    blas.multiply(moecclFloat32,
                  {.transpose = Transpose::second,
                   .rows = tokens,
                   .columns = config_.embedding,
                   .inner = config_.experts,
                   .a = dLogits,
                   .b = matrix.weights,
                   .c = dInput,
                   .adds = true},
                  stream);
  }
}

}  // namespace moeccl::cuda
