// The public functions of MoE layers. They check what the caller passes, and make the GPU of a
// layer current before they use it.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "moeccl/moe.h"
#include "src/api/handles.h"
#include "src/api/layer_config.h"
#include "src/api/moe_handle.h"
#include "src/api/questions.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/comm/agreement.h"
#include "src/model/schedule_list.h"
#include "src/route/question.h"

namespace {

using moeccl::agreeAfter;
using moeccl::boundary;
using moeccl::DeviceGuard;
using moeccl::Error;
using moeccl::layerOf;
using moeccl::require;
using moeccl::stringf;

using moeccl::kMoeConfig;
using moeccl::readStruct;
using moeccl::requireInitialised;
using moeccl::StructKind;
using moeccl::writeStruct;

constexpr StructKind<moecclMoeShapes_t> kShapes = {
    "shapes", "MOECCL_MOE_SHAPES_INITIALIZER", MOECCL_MOE_SHAPES_MAGIC,
    MOECCL_END_OF(moecclMoeShapes_t, chunks), MOECCL_END_OF(moecclMoeShapes_t, tokenRouting)};
constexpr StructKind<moecclMoeWeights_t> kWeights = {
    "weights", "MOECCL_MOE_WEIGHTS_INITIALIZER", MOECCL_MOE_WEIGHTS_MAGIC,
    MOECCL_END_OF(moecclMoeWeights_t, residualB2), MOECCL_END_OF(moecclMoeWeights_t, residualB2)};
constexpr StructKind<moecclMoeGradients_t> kGradients = {
    "gradients", "MOECCL_MOE_GRADIENTS_INITIALIZER", MOECCL_MOE_GRADIENTS_MAGIC,
    MOECCL_END_OF(moecclMoeGradients_t, residualB2),
    MOECCL_END_OF(moecclMoeGradients_t, residualB2)};
constexpr StructKind<moecclMoeStats_t> kStats = {
    "stats", "MOECCL_MOE_STATS_INITIALIZER", MOECCL_MOE_STATS_MAGIC,
    MOECCL_END_OF(moecclMoeStats_t, imbalance), MOECCL_END_OF(moecclMoeStats_t, imbalance)};

void requireTraining(const moeccl::MoeLayer& layer) {
  if (!layer.shape().training)
    throw Error(moecclInvalidUsage,
                "the layer keeps nothing for gradients: make it with config.training 1");
}

bool isKind(const moeccl::MoeLayer& layer, moeccl::gates::Kind kind) {
  return layer.shape().gate.kind == kind;
}

// Throws Error where a layer without the residual branch is given weights or gradients of that
// branch.
template <typename Mlp>
void requireResidual(const char* argument, const Mlp& mlp, bool has) {
  if (has) return;
  for (const auto& [name, pointer] : {std::pair<const char*, const void*>{"W1", mlp.w1},
                                      {"B1", mlp.b1},
                                      {"W2", mlp.w2},
                                      {"B2", mlp.b2}})
    if (pointer != nullptr)
      throw Error(moecclInvalidArgument,
                  stringf("%s.residual%s is set; it must be NULL, since config.residual is 0",
                          argument, name));
}

// The first line of what there is to say about the choice of its schedule.
std::string whyOf(moecclGrid_t grid, const moecclMoeConfig_t& config) {
  const moeccl::LayerQuery query(grid, config);
  char text[256];
  std::size_t bytes = sizeof text;
  if (moecclExplain(query.get(), nullptr, text, &bytes) != moecclSuccess)
    return moecclGetLastError(nullptr);
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

const void* weight(const void* pointer, const char* text) {
  require(pointer != nullptr, text);
  return pointer;
}

}  // namespace

const char* moecclScheduleName(moecclSchedule_t schedule) {
  return moeccl::isSchedule(schedule) ? moeccl::nameOf(schedule) : nullptr;
}

moecclResult_t moecclInternalMakeLayer(const moeccl::ComputeMakers* makers, moecclGrid_t grid,
                                       const moecclMoeConfig_t* config, moecclMoeLayer_t* layer) {
  return boundary("moecclMoeLayerCreate", nullptr, [&] {
    moeccl::gridOf(grid);
    const moeccl::HeldComm world = moeccl::holdWorld(grid);
    moeccl::Communicator& communicator = moeccl::communicatorOf(world);
    const auto device = communicator.device();
    const int number = device ? device->number : -1;
    const DeviceGuard guard(*makers, number);
    // If one rank fails, all do: for its arguments, for a config unlike the others', or for want of
    // memory.
    moeccl::CommunicatorOob oob(communicator);
    moecclMoeConfig_t wanted;
    moecclSchedule_t requested = moecclScheduleAuto;
    agreeAfter(oob, [&] {
      require(layer != nullptr, "layer is NULL; pass where to store the layer");
      wanted = readStruct(kMoeConfig, config);
      requested = moeccl::requestedSchedule(wanted, std::getenv("MOECCL_SCHEDULE"));
    });
    moeccl::requireSameConfig(communicator, wanted, requested);
    std::unique_ptr<moecclMoeLayer> made;
    agreeAfter(oob, [&] {
      const auto candidates = [&] { return moeccl::candidatesOf(grid, wanted); };
      made.reset(
          new moecclMoeLayer{number, *makers,
                             moeccl::MoeLayer(grid, wanted, requested, device.has_value(),
                                              device ? makers->cuda : makers->cpu, candidates)});
    });
    // Collective itself.
    if (made->layer.mayRoute()) agreeAfter(oob, [&] { made->layer.makeRoute(); });
    if (communicator.rank() == 0 && moeccl::logs(moeccl::LogLevel::info))
      moeccl::log(moeccl::LogLevel::info, {0, communicator.ranks()}, "layer: %s",
                  whyOf(grid, wanted).c_str());
    moeccl::addHandle(moeccl::HandleKind::layer, made.get());
    *layer = made.release();
  });
}

moecclResult_t moecclMoeLayerDestroy(moecclMoeLayer_t layer) {
  return boundary("moecclMoeLayerDestroy", nullptr, [&] {
    if (layer == nullptr) return;
    moeccl::requireLive(moeccl::HandleKind::layer,
                        moeccl::removeHandle(moeccl::HandleKind::layer, layer).state);
    const DeviceGuard guard(*layer);
    delete layer;
  });
}

moecclResult_t moecclMoeLayerGetShapes(moecclMoeLayer_t layer, moecclMoeShapes_t* shapes) {
  return boundary("moecclMoeLayerGetShapes", nullptr, [&] {
    const moeccl::MoeLayer& it = layerOf(layer);
    const moeccl::LayerShape& shape = it.shape();
    moecclMoeShapes_t ours{};
    ours.firstExpert = it.groups().ep.rank * shape.localExperts;
    ours.localExperts = shape.localExperts;
    ours.firstHidden = it.groups().esp.rank * shape.localHidden;
    ours.localHidden = shape.localHidden;
    ours.capacity = shape.dropless ? 0 : shape.capacity();
    ours.capacityGroups = shape.dropless ? 0 : shape.groups;
    ours.chunks = shape.chunks;
    ours.schedule = shape.schedule;
    ours.tokenRouting = shape.routed ? 1 : 0;
    writeStruct(kShapes, ours, shapes);
  });
}

moecclResult_t moecclMoeLayerSetWeights(moecclMoeLayer_t layer, const moecclMoeWeights_t* weights) {
  return boundary("moecclMoeLayerSetWeights", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    const moecclMoeWeights_t theirs = readStruct(kWeights, weights);
    moeccl::LayerWeights ours;
    ours.gate.gate = weight(theirs.gate, "weights.gate is NULL; it must hold [M][E]");
    if (isKind(it, moeccl::gates::Kind::noisy))
      ours.gate.noise = weight(
          theirs.noise, "weights.noise is NULL; with moecclGateNoisyTopK it must hold [M][E]");
    else
      require(theirs.noise == nullptr,
              "weights.noise is set; it must be NULL, since only moecclGateNoisyTopK reads it");
    require(theirs.bias == nullptr || isKind(it, moeccl::gates::Kind::sigmoid),
            "weights.bias is set; it must be NULL, since only moecclGateSigmoid reads it");
    ours.gate.bias = theirs.bias;
    ours.w1 = weight(theirs.w1, "weights.w1 is NULL; it must hold [localExperts][M][localHidden]");
    ours.w2 = weight(theirs.w2, "weights.w2 is NULL; it must hold [localExperts][localHidden][M]");
    ours.b1 = theirs.b1;
    ours.b2 = theirs.b2;
    ours.residual = {theirs.residualW1, theirs.residualB1, theirs.residualW2, theirs.residualB2};
    requireResidual("weights", ours.residual, it.shape().residual > 0);
    if (it.shape().residual > 0) {
      weight(theirs.residualW1,
             "weights.residualW1 is NULL; with config.residual it must hold [M][R]");
      weight(theirs.residualW2,
             "weights.residualW2 is NULL; with config.residual it must hold [R][M]");
    }
    it.setWeights(ours);
  });
}

moecclResult_t moecclMoeLayerSetGradients(moecclMoeLayer_t layer,
                                          const moecclMoeGradients_t* gradients) {
  return boundary("moecclMoeLayerSetGradients", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    const moecclMoeGradients_t theirs = readStruct(kGradients, gradients);
    requireTraining(it);
    require(theirs.noise == nullptr || isKind(it, moeccl::gates::Kind::noisy),
            "gradients.noise is set; it must be NULL, since only moecclGateNoisyTopK has it");
    const moeccl::MlpGradients residual = {theirs.residualW1, theirs.residualB1, theirs.residualW2,
                                           theirs.residualB2};
    requireResidual("gradients", residual, it.shape().residual > 0);
    it.setGradients(
        {{theirs.gate, theirs.noise}, theirs.w1, theirs.b1, theirs.w2, theirs.b2, residual});
  });
}

moecclResult_t moecclMoeLayerSetStep(moecclMoeLayer_t layer, int64_t step) {
  return boundary("moecclMoeLayerSetStep", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    if (step < 0)
      throw Error(moecclInvalidArgument,
                  stringf("step is %lld; it must be 0 or more", static_cast<long long>(step)));
    requireTraining(it);
    it.setStep(step);
  });
}

moecclResult_t moecclMoeLayerSetFirstBatch(moecclMoeLayer_t layer, int64_t firstBatch) {
  return boundary("moecclMoeLayerSetFirstBatch", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    if (firstBatch < 0)
      throw Error(moecclInvalidArgument, stringf("firstBatch is %lld; it must be 0 or more",
                                                 static_cast<long long>(firstBatch)));
    requireTraining(it);
    it.setFirstBatch(firstBatch);
  });
}

moecclResult_t moecclMoeForward(moecclMoeLayer_t layer, const void* input, void* output,
                                moecclStream_t stream) {
  return boundary("moecclMoeForward", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    if (it.shape().tokens > 0) {
      require(input != nullptr, "input is NULL; it must hold [tokens][M]");
      require(output != nullptr, "output is NULL; it must have room for [tokens][M]");
    }
    if (!it.hasWeights())
      throw Error(moecclInvalidUsage, "the layer has no weights; call moecclMoeLayerSetWeights");
    const DeviceGuard guard(*layer);
    it.forward(input, output, stream);
  });
}

moecclResult_t moecclMoeBackward(moecclMoeLayer_t layer, const void* outputGradient,
                                 double auxiliaryLossScale, void* inputGradient,
                                 moecclStream_t stream) {
  return boundary("moecclMoeBackward", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    requireTraining(it);
    if (it.shape().tokens > 0) {
      require(outputGradient != nullptr, "outputGradient is NULL; it must hold [tokens][M]");
      require(inputGradient != nullptr, "inputGradient is NULL; it must have room for [tokens][M]");
    }
    if (!it.hasStats())
      throw Error(moecclInvalidUsage,
                  "no moecclMoeForward has completed on this layer, or the last one failed");
    const DeviceGuard guard(*layer);
    it.backward(outputGradient, auxiliaryLossScale, inputGradient, stream);
  });
}

moecclResult_t moecclMoeUpdateBias(moecclMoeLayer_t layer, double* bias, double speed) {
  return boundary("moecclMoeUpdateBias", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    require(bias != nullptr, "bias is NULL; it must hold [E]");
    if (!(speed >= 0) || !std::isfinite(speed))
      throw Error(moecclInvalidArgument,
                  stringf("speed is %g; it must be a finite number, 0 or more", speed));
    if (!isKind(it, moeccl::gates::Kind::sigmoid))
      throw Error(moecclInvalidUsage,
                  "the layer's gate has no bias; config.gate must be moecclGateSigmoid");
    const DeviceGuard guard(*layer);
    it.updateBias(bias, speed);
  });
}

moecclResult_t moecclMoeGetStats(moecclMoeLayer_t layer, moecclMoeStats_t* stats) {
  return boundary("moecclMoeGetStats", nullptr, [&] {
    moeccl::MoeLayer& it = layerOf(layer);
    requireInitialised(kStats, stats);
    if (!it.hasStats())
      throw Error(moecclInvalidUsage,
                  "no moecclMoeForward has completed on this layer, or the last one failed");
    const DeviceGuard guard(*layer);
    const moeccl::BatchStats& last = it.stats();
    moecclMoeStats_t ours{};
    ours.auxiliaryLoss = last.auxiliaryLoss();
    ours.droppedChoices = last.droppedChoices();
    ours.assigned = last.assigned().data();
    ours.kept = last.kept().data();
    ours.imbalance = last.imbalance();
    writeStruct(kStats, ours, stats);
  });
}
