// Tokens move to the places of their choices and back.
#include "kernels/permute.h"

#include <memory>
#include <utility>

#include "kernels/capacity.h"
#include "kernels/reduce_ops.h"
#include "src/base/error.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

// Whole numbers, of which all sums are exact in every format.
std::vector<float> wholeNumbers(Random& random, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  return values;
}

template <typename Format>
std::vector<typename Format::Bits> encoded(const std::vector<float>& values) {
  std::vector<typename Format::Bits> bits;
  for (float value : values) bits.push_back(Format::encode(value));
  return bits;
}

template <typename Format>
std::vector<float> decoded(const std::vector<typename Format::Bits>& bits) {
  std::vector<float> values;
  for (auto element : bits) values.push_back(Format::decode(element));
  return values;
}

struct Shape {
  std::int64_t tokens, embedding, groups, groupSlots, expertStride;
  std::int32_t experts, choices;
};

// The choices of a batch, here and on the GPU, where places are given too.
struct Batch {
  Shape shape;
  std::vector<std::int32_t> chosen;
  std::vector<std::int64_t> slots, used;
  std::vector<float> weights;
  std::unique_ptr<Device<std::int32_t>> deviceChosen;
  std::unique_ptr<Device<std::int64_t>> deviceSlots, deviceUsed;
  std::unique_ptr<Device<float>> deviceWeights;

  Batch(Random& random, const Shape& shape)
      : shape(shape),
        chosen(shape.tokens * shape.choices),
        slots(chosen.size()),
        used(shape.groups * shape.experts),
        weights(wholeNumbers(random, chosen.size())) {
    for (std::int32_t& expert : chosen)
      expert = static_cast<std::int32_t>(random() % (shape.experts + 1)) - 1;
    const CapacityShape capacity{shape.experts, shape.choices,
                                 (shape.tokens + shape.groups - 1) / shape.groups,
                                 shape.groupSlots};
    assignSlots(capacity, chosen.data(), shape.tokens, shape.groups, used.data(), slots.data());
    deviceChosen = std::make_unique<Device<std::int32_t>>(chosen);
    deviceSlots = std::make_unique<Device<std::int64_t>>(slots.size());
    deviceUsed = std::make_unique<Device<std::int64_t>>(used.size());
    deviceWeights = std::make_unique<Device<float>>(weights);
    Device<std::byte> workspace(
        moeccl::cuda::assignSlotsWorkspace(capacity, shape.tokens, shape.groups));
    moeccl::cuda::assignSlots(capacity, deviceChosen->data(), shape.tokens, shape.groups,
                              deviceUsed->data(), deviceSlots->data(),
                              {workspace.data(), workspace.size()}, nullptr);
    workspace.get("assignSlots");
    expectSame(deviceSlots->get("slots"), slots, "slots");
    expectSame(deviceUsed->get("used"), used, "used");
  }

  Choices<float> host() const {
    return {chosen.data(), slots.data(), weights.data(), shape.tokens, shape.choices};
  }
  Choices<float> device() const {
    return {deviceChosen->data(), deviceSlots->data(), deviceWeights->data(), shape.tokens,
            shape.choices};
  }
};

template <typename Format>
void movesAndSums(Random& random, moecclDataType_t datatype, const Batch& batch) {
  using Bits = typename Format::Bits;
  const Shape& shape = batch.shape;
  const std::string what = "type " + std::to_string(datatype) + ", " +
                           std::to_string(shape.tokens) + " x " + std::to_string(shape.embedding) +
                           ": ";
  const std::size_t rowCount = shape.experts * shape.expertStride;
  const std::vector<float> input = wholeNumbers(random, shape.tokens * shape.embedding);
  const std::vector<float> rows = wholeNumbers(random, rowCount * shape.embedding);
  const std::size_t shift = random() % 3 == 0 ? sizeof(Bits) : 0;
  Device<Bits> deviceInput(encoded<Format>(input), shift), deviceRows(encoded<Format>(rows), shift);

  Device<Bits> places(rows.size(), shift);
  std::vector<float> expected = decoded<Format>(places.get("poison"));
  scatterTokens(batch.host(), input.data(), shape.embedding, shape.expertStride, expected.data());
  clearUnused(batch.used.data(), shape.groups, shape.experts, shape.groupSlots, shape.embedding,
              shape.expertStride, expected.data());
  moeccl::cuda::scatterTokens(batch.device(), deviceInput.data(), shape.embedding * sizeof(Bits),
                              shape.expertStride, places.data(), nullptr);
  moeccl::cuda::clearUnused(batch.deviceUsed->data(), shape.groups, shape.experts, shape.groupSlots,
                            shape.embedding * sizeof(Bits), shape.expertStride, places.data(),
                            nullptr);
  expectSame(decoded<Format>(places.get("scatter")), expected, what + "scatterTokens");

  Device<Bits> sums(input.size(), shift);
  std::vector<float> expectedSums(input.size());
  combineTokens(batch.host(), rows.data(), shape.embedding, shape.expertStride,
                expectedSums.data());
  moeccl::cuda::combineTokens(datatype, batch.device(), deviceRows.data(), shape.embedding,
                              shape.expertStride, sums.data(), nullptr);
  expectClose(decoded<Format>(sums.get("combine")), expectedSums, 0, what + "combineTokens");
  scatterTokensBackward(batch.host(), rows.data(), shape.embedding, shape.expertStride,
                        expectedSums.data());
  moeccl::cuda::scatterTokensBackward(datatype, batch.device(), deviceRows.data(), shape.embedding,
                                      shape.expertStride, sums.data(), nullptr);
  expectClose(decoded<Format>(sums.get("gather")), expectedSums, 0, what + "scatterTokensBackward");

  Device<Bits> rowGradients(rows.size(), shift);
  Device<Bits> weightGradients(batch.weights.size());
  std::vector<float> expectedRows = decoded<Format>(rowGradients.get("poison")),
                     expectedWeights(batch.weights.size());
  combineTokensBackward(batch.host(), rows.data(), input.data(), shape.embedding,
                        shape.expertStride, expectedRows.data(), expectedWeights.data());
  moeccl::cuda::combineTokensBackward(datatype, batch.device(), deviceRows.data(),
                                      deviceInput.data(), shape.embedding, shape.expertStride,
                                      rowGradients.data(), weightGradients.data(), nullptr);
  expectClose(decoded<Format>(rowGradients.get("backward")), expectedRows, 0,
              what + "combineTokensBackward, rows");
  expectSame(weightGradients.get("backward"), encoded<Format>(expectedWeights),
             what + "combineTokensBackward, weights");
}

// Rows of one expert after the other, and added to tokens in two parts that experts do not begin.
template <typename Format>
void lists(Random& random, moecclDataType_t datatype, const Batch& batch) {
  using Bits = typename Format::Bits;
  const Shape& shape = batch.shape;
  const std::int64_t width = shape.embedding;
  const std::string what =
      "type " + std::to_string(datatype) + ", " + std::to_string(shape.tokens) + " tokens: ";
  std::vector<std::int64_t> begins(shape.experts + 1), listed(batch.chosen.size(), -1);
  const bool dropless = random() % 4 == 0;  // what is chosen is kept then, places or not
  Choices<float> hostChoices = batch.host(), deviceChoices = batch.device();
  if (dropless) hostChoices.slots = deviceChoices.slots = nullptr;
  listByExpert(hostChoices, shape.experts, begins.data(), listed.data());
  Device<std::int64_t> deviceBegins(begins.size()),
      deviceListed(std::vector<std::int64_t>(listed.size(), -1)), positions(listed.size());
  // Counts in blocks of experts, each behind one of somebody else's.
  const std::int64_t block = random() % shape.experts + 1, blocks = (shape.experts - 1) / block + 1;
  std::vector<std::int64_t> counts(2 * block * blocks, -7);
  Device<std::int64_t> deviceCounts(counts);
  for (std::int64_t e = 0; e < shape.experts; ++e)
    counts[e / block * 2 * block + e % block] = begins[e + 1] - begins[e];
  const auto choices = static_cast<std::int64_t>(batch.chosen.size());
  Device<std::byte> workspace(moeccl::cuda::listByExpertWorkspace(choices, 1, shape.experts));
  std::vector<double> sums(shape.experts);
  for (double& sum : sums) sum = static_cast<double>(random() % 100);
  Device<double> deviceSums(sums);
  for (std::int32_t e = 0; e < shape.experts; ++e)
    sums[e] += static_cast<double>(begins[e + 1] - begins[e]);
  moeccl::cuda::listByExpert(deviceChoices, 1, shape.experts, deviceBegins.data(),
                             deviceListed.data(), positions.data(),
                             {deviceCounts.data(), block, 2 * block, deviceSums.data()},
                             {workspace.data(), workspace.size()}, nullptr);
  workspace.get("listByExpert");
  expectSame(deviceSums.get("sums"), sums, what + "sums");
  expectSame(deviceBegins.get("begins"), begins, what + "begins");
  expectSame(deviceCounts.get("counts"), counts, what + "counts");
  expectSame(deviceListed.get("listed"), listed, what + "listByExpert");

  const std::size_t shift = random() % 3 == 0 ? sizeof(Bits) : 0;
  const std::vector<float> input = wholeNumbers(random, shape.tokens * width);
  std::vector<float> output(input), inputGradient(input);
  const std::vector<Bits> inputBits = encoded<Format>(input);
  Device<Bits> deviceInput(inputBits, shift), deviceOutput(inputBits, shift),
      deviceGradient(inputBits, shift);
  // Lists of single experts, the last expert's rows first.
  const std::int64_t all = begins.back();
  Device<Bits> gathered(all * width, shift);
  std::vector<moeccl::cuda::GatheredRows> parts;
  for (std::int32_t e = 0; e < shape.experts; ++e)
    parts.push_back(
        {{deviceListed.data() + begins[e], static_cast<std::size_t>(begins[e + 1] - begins[e])},
         deviceInput.data(),
         gathered.data() + (all - begins[e + 1]) * width});
  moeccl::cuda::gatherListed(shape.choices, parts, width * sizeof(Bits), nullptr);
  const std::vector<Bits> gatheredRows = gathered.get("rows");
  for (std::int32_t e = 0; e < shape.experts; ++e) {
    const std::size_t count = begins[e + 1] - begins[e];
    const std::span<const std::int64_t> host(listed.data() + begins[e], count);
    const std::span<const std::int64_t> device(deviceListed.data() + begins[e], count);
    std::vector<float> rows(count * width), rowGradients(rows), weights(batch.weights.size(), 7);
    gatherListed(batch.host(), host, input.data(), width, rows.data());
    const std::vector<Bits> rowBits = encoded<Format>(rows);
    const auto first = gatheredRows.begin() + (all - begins[e + 1]) * width;
    expectSame(std::vector<Bits>(first, first + count * width), rowBits, what + "gatherListed");
    Device<Bits> deviceRows(rowBits, shift), deviceRowGradients(rows.size(), shift),
        deviceWeights(encoded<Format>(weights));
    addListedBackward(batch.host(), host, rows.data(), input.data(), width, rowGradients.data(),
                      weights.data());
    moeccl::cuda::addListedBackward(datatype, batch.device(), device, deviceRows.data(),
                                    deviceInput.data(), width, deviceRowGradients.data(),
                                    deviceWeights.data(), nullptr);
    expectClose(decoded<Format>(deviceRowGradients.get("rows")), rowGradients, 0,
                what + "addListedBackward, rows");
    expectSame(deviceWeights.get("weights"), encoded<Format>(weights),
               what + "addListedBackward, weights");
  }
  const std::vector<float> rows = wholeNumbers(random, all * width);
  Device<Bits> deviceRows(encoded<Format>(rows), shift);
  const std::span<const std::int64_t> host(listed.data(), all);
  addListed(batch.host(), host, rows.data(), width, output.data());
  gatherListedBackward(batch.host(), host, rows.data(), width, inputGradient.data());
  const std::int64_t half = random() % (all + 1);
  for (const auto& [begin, count] : {std::pair{std::int64_t{0}, half}, {half, all - half}}) {
    const moeccl::cuda::ListedRows part{positions.data(), begin, count};
    moeccl::cuda::addListed(datatype, batch.device(), part, deviceRows.data() + begin * width,
                            width, deviceOutput.data(), nullptr);
    moeccl::cuda::gatherListedBackward(datatype, batch.device(), part,
                                       deviceRows.data() + begin * width, width,
                                       deviceGradient.data(), nullptr);
  }
  expectClose(decoded<Format>(deviceOutput.get("output")), output, 0, what + "addListed");
  expectClose(decoded<Format>(deviceGradient.get("gradients")), inputGradient, 0,
              what + "gatherListedBackward");
}

// Several lists at once, of groups with as many tokens each.
GPU_TEST(listsOfSeveralGroups) {
  for (const std::int64_t groups : {1, 2, 5})
    for (const std::int64_t tokens : {0, 1, 60, 700}) {
      const std::int32_t experts = static_cast<std::int32_t>(random() % 40 + 1), width = 2;
      const std::int64_t each = tokens * width;
      std::vector<std::int32_t> chosen(groups * each);
      for (std::int32_t& expert : chosen)
        expert = static_cast<std::int32_t>(random() % (experts + 1)) - 1;
      std::vector<std::int64_t> begins(groups * (experts + 1)), listed(chosen.size(), -1),
          positions(chosen.size(), -1), counts(groups * experts);
      std::vector<double> sums(experts, 3);
      std::int64_t before = 0;
      for (std::int64_t group = 0; group < groups; ++group) {
        std::int64_t* const of = begins.data() + group * (experts + 1);
        listByExpert(Choices<float>{chosen.data() + group * each, nullptr, nullptr, tokens, width},
                     experts, of, listed.data() + before);
        for (std::int64_t i = 0; i < of[experts]; ++i)
          positions[group * each + listed[before + i]] = before + i;
        for (std::int32_t e = 0; e < experts; ++e) {
          counts[group * experts + e] = of[e + 1] - of[e];
          if (group == groups - 1) sums[e] += static_cast<double>(of[e + 1] - of[e]);
        }
        const std::int64_t kept = of[experts];
        for (std::int32_t e = 0; e <= experts; ++e) of[e] += before;
        before += kept;
      }
      Device<std::int32_t> deviceChosen(chosen);
      Device<std::int64_t> deviceBegins(begins.size()), devicePositions(positions.size()),
          deviceListed(std::vector<std::int64_t>(listed.size(), -1)), deviceCounts(counts.size());
      Device<double> deviceSums(std::vector<double>(experts, 3));
      Device<std::byte> workspace(
          moeccl::cuda::listByExpertWorkspace(groups * each, groups, experts));
      moeccl::cuda::listByExpert(
          {deviceChosen.data(), nullptr, nullptr, groups * tokens, width}, groups, experts,
          deviceBegins.data(), deviceListed.data(), devicePositions.data(),
          {deviceCounts.data(), experts, experts, deviceSums.data(), groups - 1},
          {workspace.data(), workspace.size()}, nullptr);
      const std::string what = std::to_string(groups) + " x " + std::to_string(tokens) + ": ";
      workspace.get("listByExpert");
      expectSame(deviceBegins.get("begins"), begins, what + "begins");
      expectSame(deviceListed.get("listed"), listed, what + "listed");
      expectSame(devicePositions.get("positions"), positions, what + "positions");
      expectSame(deviceCounts.get("counts"), counts, what + "counts");
      expectSame(deviceSums.get("sums"), sums, what + "sums");
    }
}

GPU_TEST(tokensMoveToPlacesAndBack) {
  const std::int64_t widths[] = {1, 3, 8, 64, 1000, 1024, 4096, 7168};
  for (int round = 0; round < (quick() ? 6 : 60); ++round) {
    const std::int64_t groups = random() % 3 + 1;
    const std::int64_t slots = random() % 40 + 1;
    const std::int64_t tokens = random() % 4 == 0 ? random() % 3 : random() % (quick() ? 60 : 900);
    Batch batch(random, {tokens, widths[random() % std::size(widths)], groups, slots,
                         groups * slots + static_cast<std::int64_t>(random() % 2),
                         static_cast<std::int32_t>(random() % 9 + 1),
                         static_cast<std::int32_t>(random() % 3 + 1)});
    movesAndSums<Unchanged<float>>(random, moecclFloat32, batch);
    movesAndSums<Float16>(random, moecclFloat16, batch);
    movesAndSums<Bfloat16>(random, moecclBfloat16, batch);
    lists<Unchanged<float>>(random, moecclFloat32, batch);
    lists<Float16>(random, moecclFloat16, batch);
    lists<Bfloat16>(random, moecclBfloat16, batch);
  }
}

GPU_TEST(placesOfManyTokensAndExperts) {
  for (std::int32_t experts : {1, 8, 64, 256, 3000})
    for (std::int64_t groups : {1, 8}) {
      const std::int64_t tokens = quick() ? 500 : 16384 + random() % 5;
      const Batch batch(random, {tokens, 1, groups, tokens / experts / groups + 1, 0, experts, 8});
    }
}

GPU_TEST(otherTypesAreRefused) {
  try {
    moeccl::cuda::combineTokens(moecclInt8, {}, nullptr, 1, 1, nullptr, nullptr);
    expect(false, "int8 was taken");
  } catch (const Error& error) {
    expect(error.result() == moecclInvalidArgument, "int8 is an invalid argument");
  }
}

}  // namespace
}  // namespace moeccl::gpu
