// Rows that are copied and added up by lists.
#include "kernels/row_lists.h"

#include <cstring>
#include <memory>
#include <type_traits>

#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "kernels/weigh.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

// A weight of any sign and size, with all bits of a float32: products with elements are not exact,
// so that it shows whether they are rounded before they are added.
float anyWeight(Random& random) {
  const float weight =
      std::ldexp(static_cast<float>(random() % (1 << 24)) + 1, static_cast<int>(random() % 5) - 24);
  return random() % 2 == 0 ? weight : -weight;
}

// Rows of three matrices, here and on the GPU, with random elements whose sums tell their order.
template <typename Format>
struct Matrices {
  using Bits = typename Format::Bits;
  static constexpr std::int32_t kRows[kRowMatrices] = {23, 41, 17};

  Matrices(Random& random, std::int64_t embedding, std::size_t shift) : elements(embedding) {
    for (int matrix = 0; matrix < kRowMatrices; ++matrix) {
      std::vector<Bits>& of = host[matrix];
      for (std::int64_t i = 0; i < kRows[matrix] * embedding; ++i)
        if constexpr (std::is_same_v<Format, Unchanged<std::uint8_t>>)
          of.push_back(static_cast<Bits>(random()));
        else
          of.push_back(Format::encode(std::ldexp(static_cast<float>(random() % 2047) - 1023,
                                                 static_cast<int>(random() % 12) - 12)));
      device[matrix] = std::make_unique<Device<Bits>>(of, shift);
    }
  }

  std::size_t rowBytes() const { return static_cast<std::size_t>(elements) * sizeof(Bits); }
  RowMatrices here() {
    const auto at = [&](int matrix) { return reinterpret_cast<std::byte*>(host[matrix].data()); };
    return {{at(0), at(1), at(2)}, rowBytes()};
  }
  RowMatrices there() {
    const auto at = [&](int matrix) {
      return reinterpret_cast<std::byte*>(device[matrix]->data());
    };
    return {{at(0), at(1), at(2)}, rowBytes()};
  }
  void expectEqual(const std::string& what) const {
    for (int matrix = 0; matrix < kRowMatrices; ++matrix)
      expectSame(device[matrix]->get(what), host[matrix], what);
  }

  std::int64_t elements;
  std::vector<Bits> host[kRowMatrices];
  std::unique_ptr<Device<Bits>> device[kRowMatrices];
};

RowAt anyRow(Random& random, int matrix) {
  return {matrix, static_cast<std::int32_t>(random() % Matrices<Float16>::kRows[matrix])};
}

// Each row of the second matrix at most once, in any order.
std::vector<RowAt> targets(Random& random, std::size_t count) {
  std::vector<RowAt> rows;
  for (std::int32_t row = 0; row < Matrices<Float16>::kRows[1]; ++row) rows.push_back({1, row});
  std::shuffle(rows.begin(), rows.end(), random);
  rows.resize(count);
  return rows;
}

template <typename Format>
void copies(Random& random, std::int64_t embedding, std::size_t shift, std::size_t count) {
  Matrices<Format> matrices(random, embedding, shift);
  const std::vector<RowAt> to = targets(random, count);
  std::vector<RowAt> from;
  for (std::size_t i = 0; i < count; ++i) from.push_back(anyRow(random, random() % 2 == 0 ? 0 : 2));
  const RowMatrices here = matrices.here();
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(here.row(to[i]), here.row(from[i]), here.rowBytes);
  Device<RowAt> deviceFrom(from), deviceTo(to);
  moeccl::cuda::copyRows(matrices.there(),
                         {deviceFrom.data(), deviceTo.data(), static_cast<std::int64_t>(count)},
                         nullptr);
  matrices.expectEqual("copies of " + std::to_string(count) + " rows of " +
                       std::to_string(embedding));
}

template <typename Format>
void sums(Random& random, moecclDataType_t datatype, std::int64_t embedding, std::size_t shift,
          bool weighted) {
  constexpr std::size_t kSums = 37;
  Matrices<Format> matrices(random, embedding, shift);
  const std::vector<RowAt> to = targets(random, kSums);
  std::vector<std::int32_t> begins{0};
  std::vector<RowAt> terms;
  for (std::size_t i = 0; i < kSums; ++i) {
    for (std::size_t term = random() % 4 == 0 ? 0 : random() % 9; term > 0; --term)
      terms.push_back(anyRow(random, random() % 2 == 0 ? 0 : 2));
    begins.push_back(static_cast<std::int32_t>(terms.size()));
  }
  // Rows beyond the lists weigh 1.
  std::vector<float> ofInput, ofScratch;
  for (int i = 0; weighted && i < 20; ++i) {
    ofInput.push_back(anyWeight(random));
    ofScratch.push_back(anyWeight(random));
  }
  ofScratch.resize(ofScratch.size() / 2);
  const auto weightsAt = [&](const float* input, const float* scratch) {
    RowWeights weights;
    weights.of[0] = input;
    weights.of[2] = scratch;
    weights.counts[0] = static_cast<std::int64_t>(ofInput.size());
    weights.counts[2] = static_cast<std::int64_t>(ofScratch.size());
    return weights;
  };
  const RowMatrices here = matrices.here();
  const RowWeights weights = weightsAt(ofInput.data(), ofScratch.data());
  for (std::size_t i = 0; i < kSums; ++i) {
    std::vector<const std::byte*> sources;
    std::vector<float> factors;
    for (std::int32_t term = begins[i]; term < begins[i + 1]; ++term) {
      sources.push_back(here.row(terms[term]));
      factors.push_back(weights.at(terms[term]));
    }
    if (sources.empty())
      std::memset(here.row(to[i]), 0, here.rowBytes);
    else
      addWeighted(datatype, here.row(to[i]), sources.data(), factors.data(), 1, sources.size(),
                  here.rowBytes);
  }
  Device<std::int32_t> deviceBegins(begins);
  Device<RowAt> deviceTerms(terms), deviceTo(to);
  Device<float> deviceInput(ofInput), deviceScratch(ofScratch);
  moeccl::cuda::addRows(datatype, matrices.there(),
                        {deviceBegins.data(), deviceTerms.data(), deviceTo.data(), kSums},
                        weightsAt(deviceInput.data(), deviceScratch.data()), nullptr);
  matrices.expectEqual("sums of rows of " + std::to_string(embedding) + " of type " +
                       std::to_string(datatype) + (weighted ? ", weighted" : ""));
}

// Rows are of very different sizes, so that every order of adding shows.
template <typename Format>
void gradients(Random& random, moecclDataType_t datatype, std::int64_t embedding, std::size_t shift,
               std::size_t count) {
  using Bits = typename Format::Bits;
  std::vector<Bits> gradient, rows;
  std::vector<float> weights;
  for (std::size_t row = 0; row < count; ++row) {
    weights.push_back(anyWeight(random));
    for (std::int64_t i = 0; i < embedding; ++i) {
      gradient.push_back(Format::encode(anyWeight(random)));
      rows.push_back(Format::encode(std::ldexp(static_cast<float>(random() % 255) - 127,
                                               static_cast<int>(random() % 16) - 12)));
    }
  }
  const std::size_t rowBytes = static_cast<std::size_t>(embedding) * sizeof(Bits);
  Device<Bits> deviceGradient(gradient, shift), deviceRows(rows, shift);
  Device<float> deviceWeights(weights), ofWeights(count);
  const auto all = [&](Bits* gradients, const Bits* from, const float* with) {
    return WeighedRows{datatype,
                       reinterpret_cast<std::byte*>(gradients),
                       reinterpret_cast<const std::byte*>(from),
                       rowBytes,
                       with,
                       static_cast<std::int64_t>(count)};
  };
  std::vector<float> expected(count);
  weighGradients(all(gradient.data(), rows.data(), weights.data()), expected.data());
  moeccl::cuda::weighGradients(all(deviceGradient.data(), deviceRows.data(), deviceWeights.data()),
                               ofWeights.data(), nullptr);
  const std::string what = std::to_string(count) + " gradients of " + std::to_string(embedding) +
                           " of type " + std::to_string(datatype);
  expectSame(deviceGradient.get(what), gradient, what);
  expectSame(ofWeights.get(what), expected, what + ", of weights");
}

std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> all = {1, 8, 37, 256, 1300};
  if (!quick()) all.push_back(7168);
  return all;
}

GPU_TEST(rowsAreCopiedByLists) {
  for (const std::int64_t embedding : sizes())
    for (const std::size_t shift : {0, 1, 4})
      for (const std::size_t count : {0, 1, 40}) {
        copies<Unchanged<std::uint8_t>>(random, embedding, shift, count);
        if (shift % 4 == 0) copies<Unchanged<float>>(random, embedding, shift, count);
      }
}

GPU_TEST(rowsAreAddedByListsInTheirOrder) {
  for (const std::int64_t embedding : sizes())
    for (const bool weighted : {false, true})
      for (const std::size_t shift : {0, 4}) {
        sums<Unchanged<float>>(random, moecclFloat32, embedding, shift, weighted);
        sums<Float16>(random, moecclFloat16, embedding, shift / 2, weighted);
        sums<Bfloat16>(random, moecclBfloat16, embedding, shift / 2, weighted);
      }
}

GPU_TEST(gradientsAreWeighedInTheOrderOfCpus) {
  for (const std::int64_t embedding : sizes())
    for (const std::size_t count : {0, 1, 33}) {
      gradients<Unchanged<float>>(random, moecclFloat32, embedding, 4, count);
      gradients<Float16>(random, moecclFloat16, embedding, 2, count);
      gradients<Bfloat16>(random, moecclBfloat16, embedding, 0, count);
    }
}

}  // namespace
}  // namespace moeccl::gpu
