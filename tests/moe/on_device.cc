// Copies a layer's memory to the device, runs passes there, and compares.
#include "tests/moe/on_device.h"

#include <array>
#include <limits>
#include <string>
#include <utility>

namespace moeccl::test {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

DeviceElements::DeviceElements(DeviceMemory& device, const void* host, std::size_t bytes)
    : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  memory_ = device.allocate(bytes);
  set(host);
}

DeviceElements::~DeviceElements() {
  if (memory_ != nullptr) device_.free(memory_);
}

void DeviceElements::set(const void* host) {
  if (bytes_ > 0) device_.put(memory_, host, bytes_);
}

Elements DeviceElements::read() const {
  Elements host(bytes_);
  if (bytes_ > 0) device_.get(host.data(), memory_, bytes_);
  return host;
}

// What weights, and gradients of them, are of.
struct DeviceTensors {
  template <typename Host>
  DeviceTensors(Device& device, const Host& host)
      : gate(device, host.gate),
        noise(device, host.noise),
        w1(device, host.w1),
        b1(device, host.b1),
        w2(device, host.w2),
        b2(device, host.b2),
        residualW1(device, host.residualW1),
        residualB1(device, host.residualB1),
        residualW2(device, host.residualW2),
        residualB2(device, host.residualB2) {}

  template <typename Pointers>
  void fill(Pointers* to) const {
    to->gate = gate.get();
    to->noise = noise.get();
    to->w1 = w1.get();
    to->b1 = b1.get();
    to->w2 = w2.get();
    to->b2 = b2.get();
    to->residualW1 = residualW1.get();
    to->residualB1 = residualB1.get();
    to->residualW2 = residualW2.get();
    to->residualB2 = residualB2.get();
  }
  Learned read(const Elements& input) const {
    return {input,
            gate.read(),
            noise.read(),
            w1.read(),
            b1.read(),
            w2.read(),
            b2.read(),
            residualW1.read(),
            residualB1.read(),
            residualW2.read(),
            residualB2.read()};
  }

  DeviceElements gate, noise, w1, b1, w2, b2;
  DeviceElements residualW1, residualB1, residualW2, residualB2;
};

struct DeviceLayer::Weights {
  Weights(Device& device, const moe_reference::Shard& shard, const std::vector<double>& hostBias)
      : tensors(device, shard), bias(device, hostBias.data(), hostBias.size() * sizeof(double)) {}

  void set(moecclMoeLayer_t layer) const {
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    tensors.fill(&weights);
    weights.bias = static_cast<const double*>(bias.get());
    check(moecclMoeLayerSetWeights(layer, &weights));
  }

  DeviceTensors tensors;
  DeviceElements bias;
};

DeviceLayer::DeviceLayer(Device& device, moecclGrid_t grid, const moe_reference::Layer& whole,
                         moecclSchedule_t schedule) {
  moecclMoeConfig_t config = whole.config;
  config.schedule = schedule;
  check(moecclMoeLayerCreate(grid, &config, &layer_));
  check(moecclMoeLayerGetShapes(layer_, &shapes_));
  weights_ = std::make_unique<Weights>(device, moe_reference::shardOf(whole, shapes_), whole.bias);
  weights_->set(layer_);
}

DeviceLayer::~DeviceLayer() { moecclMoeLayerDestroy(layer_); }

DeviceElements& DeviceLayer::bias() { return weights_->bias; }

Outcome statsOf(const Problem& problem, moecclMoeLayer_t layer) {
  moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  check(moecclMoeGetStats(layer, &stats));
  Outcome outcome;
  outcome.auxiliaryLoss = stats.auxiliaryLoss;
  outcome.imbalance = stats.imbalance;
  outcome.droppedChoices = stats.droppedChoices;
  outcome.assigned.assign(stats.assigned, stats.assigned + problem.experts);
  outcome.kept.assign(stats.kept, stats.kept + problem.experts);
  return outcome;
}

namespace {

// What two passes add up to, beside the gradient of the input.
Gradients twice(Gradients once) {
  for (auto Gradients::*weights :
       {&Gradients::gate, &Gradients::noise, &Gradients::w1, &Gradients::b1, &Gradients::w2,
        &Gradients::b2, &Gradients::residualW1, &Gradients::residualB1, &Gradients::residualW2,
        &Gradients::residualB2, &Gradients::gateError, &Gradients::noiseError})
    for (double& each : once.*weights) each *= 2;
  return once;
}

}  // namespace

void train(Device& device, moecclGrid_t grid, int rank, const Task& task, const Turn& turn) {
  const Problem& problem = task.problem;
  const int batch = rank / problem.grid.nMp;
  const Elements tokens = encode(problem.datatype, task.solved.inputs[batch]);
  const Elements slopes = encode(problem.datatype, task.outputGradients[batch]);
  const Elements poison =
      encode(problem.datatype, std::vector<double>(task.solved.inputs[batch].size(),
                                                   std::numeric_limits<double>::quiet_NaN()));
  const DeviceElements input[] = {{device, tokens}, {device, tokens}};
  const DeviceElements slope[] = {{device, slopes}, {device, slopes}};
  const DeviceElements output(device, poison), result(device, poison);
  const DeviceStream forwards(device), backwards(device);

  moe_reference::Layer whole = task.solved.layer;
  whole.config.training = 1;
  const DeviceLayer layer(device, grid, whole, turn.schedule);
  const Gradients expected = moe_reference::shardOf(whole, layer.shapes(), task.expected[batch]);
  const DeviceTensors room(device, roomFor(problem.datatype, expected, 0));
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  room.fill(&gradients);
  check(moecclMoeLayerSetGradients(layer.get(), &gradients));
  Outcome outcome;
  for (int pass = 0; pass < 2; ++pass) {
    check(moecclMoeLayerSetStep(layer.get(), problem.step));
    check(moecclMoeForward(layer.get(), input[pass].get(),
                           turn.inPlace ? input[pass].get() : output.get(),
                           turn.onDefaultStream ? nullptr : forwards.get()));
    if (pass == 1) outcome = statsOf(problem, layer.get());
    check(moecclMoeBackward(layer.get(), slope[pass].get(), kAuxiliaryLossScale,
                            turn.inPlace ? slope[pass].get() : result.get(),
                            turn.onDefaultStream ? nullptr : backwards.get()));
  }
  // What it has waited for is complete then, too.
  device.synchronize(turn.onDefaultStream ? nullptr : backwards.get());
  outcome.output = decode(problem.datatype, (turn.inPlace ? input[1] : output).read());
  checkSolved(problem, task.solved, rank, outcome);
  checkLearned(problem, room.read((turn.inPlace ? slope[1] : result).read()), twice(expected),
               toleranceOf(problem.datatype));
}

}  // namespace moeccl::test
