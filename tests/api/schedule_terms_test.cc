// What src/select believes that a layer's schedules do, against the calls that layers make: the
// functions below stand before the library's own, write down what they are asked for, and hand it
// on.
#include "src/moe/schedule_terms.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "moeccl/moe.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

struct Made {
  Collective collective;
  int ranks;
  std::size_t bytes;  // of the send buffer

  auto operator<=>(const Made&) const = default;
};

std::string textOf(const std::vector<Made>& calls) {
  std::string text;
  for (const Made& call : calls)
    text += std::string(nameOf(call.collective)) + " of " + std::to_string(call.bytes) +
            " bytes among " + std::to_string(call.ranks) + "; ";
  return text;
}

thread_local std::vector<Made>* recorder = nullptr;

std::size_t sizeOf(moecclDataType_t type) {
  return type == moecclFloat64 || type == moecclInt64 ? 8 : 4;
}

int ranksOf(moecclComm_t comm) {
  int ranks = 0;
  moecclCommCount(comm, &ranks);
  return ranks;
}

int ranksOf(moecclGrid_t grid) {
  moecclComm_t world = nullptr;
  moecclGridGetComm(grid, moecclGroupWorld, &world);
  return ranksOf(world);
}

moecclGridShape_t shapeOf(moecclGrid_t grid) {
  moecclGridShape_t shape{};
  moecclGridGetShape(grid, &shape);
  return shape;
}

void record(Collective collective, int ranks, std::size_t elements, moecclDataType_t type) {
  if (recorder != nullptr) recorder->push_back({collective, ranks, elements * sizeOf(type)});
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace moeccl::test

using moeccl::Collective;
using moeccl::test::ranksOf;
using moeccl::test::real;
using moeccl::test::record;

#define FORWARD(function, ...) return real<decltype(function)>(#function)(__VA_ARGS__)

moecclResult_t moecclAllToAll(const void* in, void* out, size_t count, moecclDataType_t type,
                              moecclComm_t comm, moecclStream_t stream) {
  record(Collective::allToAll, ranksOf(comm), count * static_cast<size_t>(ranksOf(comm)), type);
  FORWARD(moecclAllToAll, in, out, count, type, comm, stream);
}

moecclResult_t moecclAllToAllv(const void* in, const size_t* sendCounts, const size_t* sendDispls,
                               void* out, const size_t* recvCounts, const size_t* recvDispls,
                               moecclDataType_t type, moecclComm_t comm, moecclStream_t stream) {
  record(Collective::allToAllv, ranksOf(comm),
         std::accumulate(sendCounts, sendCounts + ranksOf(comm), size_t{0}), type);
  FORWARD(moecclAllToAllv, in, sendCounts, sendDispls, out, recvCounts, recvDispls, type, comm,
          stream);
}

moecclResult_t moecclAllGather(const void* in, void* out, size_t count, moecclDataType_t type,
                               moecclComm_t comm, moecclStream_t stream) {
  record(Collective::allGather, ranksOf(comm), count, type);
  FORWARD(moecclAllGather, in, out, count, type, comm, stream);
}

moecclResult_t moecclReduceScatter(const void* in, void* out, size_t count, moecclDataType_t type,
                                   moecclRedOp_t op, moecclComm_t comm, moecclStream_t stream) {
  record(Collective::reduceScatter, ranksOf(comm), count * static_cast<size_t>(ranksOf(comm)),
         type);
  FORWARD(moecclReduceScatter, in, out, count, type, op, comm, stream);
}

moecclResult_t moecclAllReduce(const void* in, void* out, size_t count, moecclDataType_t type,
                               moecclRedOp_t op, moecclComm_t comm, moecclStream_t stream) {
  record(Collective::allReduce, ranksOf(comm), count, type);
  FORWARD(moecclAllReduce, in, out, count, type, op, comm, stream);
}

moecclResult_t moecclDispatch(const void* in, void* out, size_t count, int experts,
                              moecclDataType_t type, moecclGrid_t grid, moecclStream_t stream) {
  const auto all = static_cast<size_t>(moeccl::test::shapeOf(grid).nEp * experts);
  record(Collective::dispatch, ranksOf(grid), count * all, type);
  FORWARD(moecclDispatch, in, out, count, experts, type, grid, stream);
}

moecclResult_t moecclSplitDispatch(const void* in, void* out, size_t count, int experts,
                                   moecclDataType_t type, moecclGrid_t grid,
                                   moecclStream_t stream) {
  const moecclGridShape_t shape = moeccl::test::shapeOf(grid);
  record(Collective::splitDispatch, ranksOf(grid),
         count * static_cast<size_t>(shape.nEp * shape.nMp * experts), type);
  FORWARD(moecclSplitDispatch, in, out, count, experts, type, grid, stream);
}

moecclResult_t moecclCombine(const void* in, void* out, size_t count, int experts,
                             moecclDataType_t type, moecclGrid_t grid, moecclStream_t stream) {
  record(Collective::combine, ranksOf(grid), count * static_cast<size_t>(experts * ranksOf(grid)),
         type);
  FORWARD(moecclCombine, in, out, count, experts, type, grid, stream);
}

moecclResult_t moecclCombineAllGather(const void* in, void* out, size_t count, int experts,
                                      moecclDataType_t type, moecclGrid_t grid,
                                      moecclStream_t stream) {
  record(Collective::combineAllGather, ranksOf(grid),
         count * static_cast<size_t>(experts * ranksOf(grid)), type);
  FORWARD(moecclCombineAllGather, in, out, count, experts, type, grid, stream);
}

namespace moeccl::test {
namespace {

LayerSizes sizesOf(const moecclMoeConfig_t& config, const moecclGridShape_t& grid,
                   const moecclMoeShapes_t& shapes) {
  LayerSizes sizes{};
  sizes.grid = {grid.nMp, grid.nEp, grid.nEsp, grid.order == moecclOrderEspEp};
  sizes.elementBytes = config.datatype == moecclFloat64 ? 8 : 4;
  sizes.tokens = config.tokens;
  sizes.embedding = config.embedding;
  sizes.localHidden = shapes.localHidden;
  sizes.experts = config.experts;
  sizes.choices = config.topK;
  sizes.width = config.gate == moecclGateExpertChoice ? config.experts : config.topK;
  sizes.logits = (config.gate == moecclGateNoisyTopK ? 2 : 1) * config.experts;
  // Counts before and after capacity, and two terms of the loss, of each sequence.
  const std::int64_t sequences =
      config.sequenceTokens == 0 ? 1 : (config.tokens - 1) / config.sequenceTokens + 1;
  sizes.sums = (2 + 2 * sequences) * config.experts;
  sizes.capacity = shapes.capacity;
  sizes.dropless = config.dropless != 0;
  sizes.residual = config.residual;
  const std::int64_t groups = sizes.dropless ? 1 : shapes.capacityGroups;
  const std::int64_t unit = std::lcm(groups, std::int64_t{grid.nMp});
  sizes.chunks = shapes.chunks;
  sizes.partTokens = (config.tokens + unit - 1) / unit * unit / grid.nMp;
  return sizes;
}

std::vector<Made> expectedOf(const ScheduleTerms& terms, const Grid& grid) {
  std::vector<Made> calls;
  for (const Exchange& exchange : terms.exchanges) {
    const int ranks = exchange.group == GroupKind::world ? grid.ranks()
                      : exchange.group == GroupKind::mp  ? grid.mp
                      : exchange.group == GroupKind::ep  ? grid.ep
                                                         : grid.esp;
    calls.insert(calls.end(), static_cast<std::size_t>(exchange.times),
                 {exchange.collective, ranks, static_cast<std::size_t>(exchange.bytes)});
  }
  return calls;
}

struct Kind {
  moecclMoeGate_t gate = moecclGateSoftmax;
  moecclDataType_t datatype = moecclFloat32;
  bool dropless = false;
  std::int64_t residual = 0;
  std::int64_t chunks = 1;
};

void expectTerms(moecclComm_t comm, const moecclGridShape_t& shape, moecclSchedule_t schedule,
                 const Kind& it) {
  const moecclMoeGate_t kind = it.gate;
  moecclGrid_t grid = nullptr;
  check(moecclGridCreate(comm, shape, &grid), comm);
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = 19;
  config.embedding = 6;
  config.hidden = 8;
  config.experts = 2 * shape.nEp;
  config.topK = 2;
  config.capacityFactor = 1.25;
  config.schedule = schedule;
  config.training = 1;
  config.gate = kind;
  config.datatype = it.datatype;
  if (kind == moecclGateSwitch) config.topK = 1;
  if (kind == moecclGateSigmoid) config.sequenceTokens = 7;
  config.residual = it.residual;
  config.chunks = it.chunks;
  if (it.chunks > 1) config.capacityGroups = shape.nMp * it.chunks;
  if (it.dropless) {
    // Every expert gets the mean of what it could when it gets all.
    config.dropless = 1;
    config.capacityFactor = 0;
    config.tokens = 24;
    config.topK = config.experts;
  }
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const auto zeros = [](std::int64_t count) {  // of either datatype
    return std::vector<double>(static_cast<std::size_t>(count));
  };
  const std::vector<double> gate = zeros(config.embedding * config.experts);
  const std::vector<double> matrix =
      zeros(shapes.localExperts * config.embedding * shapes.localHidden);
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = gate.data();
  weights.noise = kind == moecclGateNoisyTopK ? gate.data() : nullptr;
  weights.w1 = weights.w2 = matrix.data();
  const std::vector<double> residual = zeros(config.embedding * config.residual);
  if (it.residual > 0) weights.residualW1 = weights.residualW2 = residual.data();
  check(moecclMoeLayerSetWeights(layer, &weights));
  const std::vector<double> tokens = zeros(config.tokens * config.embedding);
  std::vector<double> outputs = tokens, gradient = tokens;

  const LayerSizes sizes = sizesOf(config, shape, shapes);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::vector<Made> made;
    recorder = &made;
    const moecclResult_t result =
        pass == Pass::forward
            ? moecclMoeForward(layer, tokens.data(), outputs.data(), nullptr)
            : moecclMoeBackward(layer, outputs.data(), 0.1, gradient.data(), nullptr);
    recorder = nullptr;
    check(result);
    std::vector<Made> expected = expectedOf(termsOf(schedule, pass, sizes), sizes.grid);
    if (it.chunks > 1)  // those of different chunks mix
      for (auto* calls : {&made, &expected}) std::ranges::sort(*calls);
    checkThat(made == expected, "it made: " + textOf(made) + "expected: " + textOf(expected));
  }
  check(moecclMoeLayerDestroy(layer));
  check(moecclGridDestroy(grid));
}

TEST(ScheduleTerms, AreTheCallsOfALayer) {
  for (const moecclGridShape_t& shape : {moecclGridShape_t{2, 4, 2, moecclOrderEspEp},
                                         {4, 2, 4, moecclOrderEpEsp},
                                         {1, 8, 1, moecclOrderEspEp},
                                         {2, 1, 8, moecclOrderEspEp},
                                         {8, 4, 2, moecclOrderEspEp}})
    for (const auto schedule :
         {moecclScheduleBaseline, moecclScheduleS1, moecclScheduleS2, moecclSchedulePpMoe}) {
      if (schedule == moecclSchedulePpMoe && shape.nMp != 8) continue;
      SCOPED_TRACE("N_MP " + std::to_string(shape.nMp) + " N_ESP " + std::to_string(shape.nEsp) +
                   " schedule " + std::to_string(schedule));
      runJob({.ranks = 8, .nodes = {4, 4}, .algorithms = {}}, [&](moecclComm_t comm, int) {
        for (int gate = 0; gate < moecclNumGates; ++gate)
          for (const auto datatype : {moecclFloat32, moecclFloat64})
            expectTerms(comm, shape, schedule,
                        {.gate = static_cast<moecclMoeGate_t>(gate), .datatype = datatype});
        expectTerms(comm, shape, schedule, {.residual = 5});
        if (schedule == moecclScheduleS1) expectTerms(comm, shape, schedule, {.chunks = 3});
        if (schedule == moecclScheduleS2) return;
        expectTerms(comm, shape, schedule, {.dropless = true});
        expectTerms(comm, shape, schedule, {.dropless = true, .residual = 3});
      });
    }
}

}  // namespace
}  // namespace moeccl::test
