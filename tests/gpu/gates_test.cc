// Gates on a GPU decide and differentiate as the CPU's do.
#include "kernels/gates/gate_cuda.h"
#include "kernels/reduce_ops.h"
#include "tests/gpu/check.h"
#include "tests/kernels/gate_pass.h"

namespace moeccl::gpu {
namespace {

using gates::Batch;
using gates::Config;

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

template <typename Format>
std::vector<typename Format::Bits> encoded(const std::vector<double>& values) {
  std::vector<typename Format::Bits> bits;
  for (double value : values) bits.push_back(Format::encode(static_cast<float>(value)));
  return bits;
}

template <typename Format>
std::vector<float> decoded(const std::vector<typename Format::Bits>& bits) {
  std::vector<float> values;
  for (auto element : bits) values.push_back(Format::decode(element));
  return values;
}

template <typename Format>
constexpr moecclDataType_t kTypeOf = moecclFloat32;
template <>
constexpr moecclDataType_t kTypeOf<Float16> = moecclFloat16;
template <>
constexpr moecclDataType_t kTypeOf<Bfloat16> = moecclBfloat16;

// The batch, of numbers that the format has.
template <typename Format>
Batch storable(Batch batch) {
  for (std::vector<double>* all : {&batch.gate, &batch.noise, &batch.input}) {
    const std::vector<float> values = decoded<Format>(encoded<Format>(*all));
    all->assign(values.begin(), values.end());
  }
  return batch;
}

// As gates::Pass, on the GPU.
template <typename Format>
struct DevicePass {
  using Bits = typename Format::Bits;
  const Config& config;
  std::int64_t groups;
  moeccl::cuda::Gate gate;
  Device<std::byte> workspace;
  Device<Bits> weights, noise, input;
  Device<double> bias, logits, sums, dSums, loss;
  Device<std::int32_t> chosen;
  Device<float> choiceWeights;
  Device<std::int64_t> used, slots;
  Device<double> factors;

  DevicePass(const Batch& batch, std::int64_t groups)
      : config(batch.config),
        groups(groups),
        gate(config, kTypeOf<Format>, config.batchTokens, groups),
        workspace(gate.workspaceBytes()),
        weights(encoded<Format>(batch.gate)),
        noise(encoded<Format>(batch.noise)),
        input(encoded<Format>(batch.input)),
        bias(batch.bias),
        logits(config.batchTokens * logitsPerToken(config)),
        sums(std::vector<double>(sumsSize(config))),
        dSums(sumsSize(config)),
        loss(1),
        chosen(config.batchTokens * width(config)),
        choiceWeights(chosen.size()),
        used(groups * config.experts),
        slots(chosen.size()),
        factors(config.batchTokens) {}

  std::span<std::byte> space() { return {workspace.data(), workspace.size()}; }
  gates::Parameters<void> parameters() {
    return {weights.data(), noise.size() > 0 ? noise.data() : nullptr,
            bias.size() > 0 ? bias.data() : nullptr};
  }
  gates::Part<void> part(const Batch& batch, std::int64_t begin, std::int64_t end) {
    return {input.data() + begin * config.embedding, end - begin, begin, batch.draw};
  }

  void forward(const Batch& batch, const std::vector<std::int64_t>& ends) {
    std::int64_t begin = 0;
    for (std::int64_t end : ends) {
      gate.forward(
          parameters(), part(batch, begin, end),
          {logits.data() + begin * logitsPerToken(config), chosen.data() + begin * width(config),
           choiceWeights.data() + begin * width(config)},
          sums.data(), space(), nullptr);
      begin = end;
    }
    gate.place(config.batchTokens, groups, chosen.data(), choiceWeights.data(), used.data(),
               slots.data(), factors.data(), sums.data(), space(), nullptr);
    gate.loss(sums.data(), 0.7, dSums.data(), loss.data(), nullptr);
  }
};

// tolerance: of one rounding in the format.
template <typename Format>
void compareBackward(Random& random, const Batch& batch, DevicePass<Format>& device,
                     gates::Pass<float>& expected, double tolerance, moeccl::cuda::Blas& blas) {
  using Bits = typename Format::Bits;
  std::vector<double> dWeights(device.chosen.size());
  for (double& value : dWeights) value = std::uniform_real_distribution<float>(-1, 1)(random);
  const std::vector<Bits> given = encoded<Format>(dWeights);
  expected.backward(batch, decoded<Format>(given), {batch.config.batchTokens});
  const auto zeros = [](const std::vector<double>& like) { return std::vector<Bits>(like.size()); };
  Device<Bits> deviceWeights(given), dGate(zeros(batch.gate)), dNoise(zeros(batch.noise)),
      dInput(zeros(batch.input));
  device.gate.backward(device.parameters(), device.part(batch, 0, batch.config.batchTokens),
                       device.logits.data(), device.chosen.data(),
                       {device.slots.data(), device.choiceWeights.data(), device.factors.data()},
                       deviceWeights.data(), device.dSums.data(),
                       {dGate.data(), batch.noise.empty() ? nullptr : dNoise.data(), dInput.data()},
                       blas, device.space(), nullptr);
  device.workspace.get("backward");
  const auto close = [&](const Device<Bits>& values, const std::vector<float>& wanted,
                         const char* what) {
    expectClose(decoded<Format>(values.get("backward")), wanted, 1e-4 + tolerance,
                batch.name + ": gradient of the " + what);
  };
  close(dGate, expected.dGate, "gate");
  close(dInput, expected.dInput, "input");
  if (!batch.noise.empty()) close(dNoise, expected.dNoise, "noise");
}

template <typename Format>
void compareIn(Random& random, const Batch& given, double tolerance, moeccl::cuda::Blas& blas) {
  const Batch batch = storable<Format>(given);
  const Config& config = batch.config;
  gates::Pass<float> expected(batch, 0.7, {config.batchTokens});
  const auto groups = static_cast<std::int64_t>(expected.used.size()) / config.experts;
  DevicePass<Format> device(batch, groups);
  device.forward(batch, {config.batchTokens});
  device.workspace.get("forward");
  expectSame(device.logits.get("logits"), expected.logits, batch.name + ": logits");
  const std::vector<std::int32_t> chosen = device.chosen.get("chosen");
  expectSame(chosen, expected.chosen, batch.name + ": chosen");
  if (chosen != expected.chosen) return;
  expectClose(device.choiceWeights.get("weights"), expected.weights, 1e-6,
              batch.name + ": weights");
  expectSame(device.slots.get("slots"), expected.slots, batch.name + ": slots");
  expectSame(device.used.get("used"), expected.used, batch.name + ": used");
  expectClose(device.sums.get("sums"), expected.sums, 1e-9, batch.name + ": sums");
  expectClose(device.dSums.get("dSums"), expected.dSums, 1e-9, batch.name + ": gradients of sums");
  expectClose(device.loss.get("loss"), {expected.loss}, 1e-9, batch.name + ": loss");
  compareBackward(random, batch, device, expected, tolerance, blas);
}

void compare(Random& random, const Batch& batch, moeccl::cuda::Blas& blas) {
  compareIn<Unchanged<float>>(random, batch, 0, blas);
}

GPU_TEST(gatesDecideAndDifferentiateAsTheCpuDoes) {
  Device<std::byte> space(kBlasBytes);
  moeccl::cuda::Blas blas({space.data(), space.size()});
  int number = 0;
  for (const Config& config : gates::everyConfig()) {
    if (quick() && ++number % 7 != 0) continue;
    Batch batch = batchOf(config, random());
    compare(random, batch, blas);
    batch.draw.reset();
    compare(random, batch, blas);
    // The first of equal experts and tokens is chosen.
    compare(random, batchOf(config, random(), gates::Values::few), blas);
    if (config.kind == gates::Kind::expertChoice) continue;
    Config renormalizing = config;
    renormalizing.renormalize = true;
    compare(random, batchOf(renormalizing, random()), blas);
  }
}

// More tokens than are made float32 at a time, with and without what is random.
GPU_TEST(gatesOfNarrowElements) {
  Device<std::byte> space(kBlasBytes);
  moeccl::cuda::Blas blas({space.data(), space.size()});
  for (gates::Kind kind : {gates::Kind::softmax, gates::Kind::noisy, gates::Kind::gshard,
                           gates::Kind::expertChoice, gates::Kind::sigmoid})
    for (std::int64_t tokens : {1, 77, quick() ? 1030 : 2500}) {
      Config config{kind, tokens, 19, 12, kind == gates::Kind::gshard ? 2 : 3};
      config.capacityTokens = (tokens + 1) / 2;
      config.capacitySlots = config.capacityTokens * 2 / 3 + 1;
      if (kind == gates::Kind::softmax) config.jitter = 0.25;
      if (kind == gates::Kind::sigmoid) config.sequenceTokens = 50;
      Batch batch = batchOf(config, random());
      for (const bool draws : {true, false}) {
        if (!draws) batch.draw.reset();
        compareIn<Float16>(random, batch, 0x1p-11, blas);
        compareIn<Bfloat16>(random, batch, 0x1p-8, blas);
      }
    }
}

// Tiles of logits that are whole and that are not.
GPU_TEST(gatesOfAnyNumberOfExperts) {
  Device<std::byte> space(kBlasBytes);
  moeccl::cuda::Blas blas({space.data(), space.size()});
  for (std::int32_t experts : {1, 8, 9, 16, 20, 32, 33, 64, 70})
    for (double jitter : {0.0, 0.25}) {
      Config config{gates::Kind::softmax, 131, 77, experts, 1, 131, 131};
      config.jitter = jitter;
      Batch batch = batchOf(config, random());
      if (jitter > 0) batch.draw = gates::Draw{5, 6, 7};
      compare(random, batch, blas);
    }
}

Config largeConfig(gates::Kind kind, std::int32_t experts) {
  Config config{kind, quick() ? 150 : 5000, 200, experts, kind == gates::Kind::gshard ? 2 : 4};
  config.capacityTokens = (config.batchTokens + 3) / 4;
  config.capacitySlots = 2 * config.capacityTokens * config.choices / experts + 1;
  if (kind == gates::Kind::sigmoid) {
    config.expertGroups = 4;
    config.topGroups = 2;
    config.sequenceTokens = 700;
  }
  return config;
}

GPU_TEST(gatesOfManyExperts) {
  Device<std::byte> space(kBlasBytes);
  moeccl::cuda::Blas blas({space.data(), space.size()});
  for (gates::Kind kind : {gates::Kind::softmax, gates::Kind::noisy, gates::Kind::gshard,
                           gates::Kind::expertChoice, gates::Kind::sigmoid})
    for (std::int32_t experts : {8, 64, 256, 1000}) {
      if (quick() && experts > 64 && kind != gates::Kind::softmax) continue;
      compare(random, batchOf(largeConfig(kind, experts), random()), blas);
    }
}

// So the ranks of an MP group agree, whatever parts each of them gates.
GPU_TEST(gatesDoNotDependOnHowABatchIsCut) {
  for (gates::Kind kind : {gates::Kind::softmax, gates::Kind::noisy, gates::Kind::gshard,
                           gates::Kind::expertChoice, gates::Kind::sigmoid}) {
    const Batch batch = batchOf(largeConfig(kind, 24), random());
    const std::int64_t tokens = batch.config.batchTokens;
    DevicePass<Unchanged<float>> whole(batch, 4), cut(batch, 4);
    whole.forward(batch, {tokens});
    const auto middle = static_cast<std::int64_t>(random() % tokens);
    cut.forward(batch, {0, middle, middle, tokens});
    expectSame(cut.chosen.get("chosen"), whole.chosen.get("chosen"), batch.name + ": chosen");
    expectSame(cut.choiceWeights.get("weights"), whole.choiceWeights.get("weights"),
               batch.name + ": weights");
    expectSame(cut.slots.get("slots"), whole.slots.get("slots"), batch.name + ": slots");
  }
}

}  // namespace
}  // namespace moeccl::gpu
