// Rows are quantised on a GPU as on CPUs.
#include "kernels/quantise.h"

#include <limits>

#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "tests/gpu/check.h"

namespace moeccl::gpu {
namespace {

// Groups of very different sizes: zeros, numbers below float32's smallest normal one, the largest
// of the type, and some with an infinity or a NaN.
template <typename Wide>
std::vector<typename Wide::Bits> rowsOf(Random& random, std::size_t groups) {
  std::vector<typename Wide::Bits> rows;
  for (std::size_t group = 0; group < groups; ++group) {
    const int kind = static_cast<int>(group % 7);
    for (std::size_t i = 0; i < kScaled; ++i) {
      float value = static_cast<float>(random() % 20001) / 10000 - 1;
      if (kind == 1) value *= 0.0f;
      if (kind == 2) value = std::ldexp(value, -140);
      if (kind == 3) value = std::ldexp(value, 100);
      if (kind == 4 && i == random() % kScaled) value = std::numeric_limits<float>::infinity();
      if (kind == 5 && i == 77) value = std::numeric_limits<float>::quiet_NaN();
      rows.push_back(Wide::encode(value));
    }
  }
  return rows;
}

// Which NaN a scale or an element is may differ.
void alikeNans(moecclDataType_t narrow, std::vector<std::byte>& values,
               const std::vector<std::byte>& expected, std::size_t elements) {
  const auto isNan = [narrow](std::byte bits) {
    const auto value = static_cast<std::uint8_t>(bits);
    const float wide =
        narrow == moecclFloat8e4m3 ? Float8e4m3::decode(value) : Float8e5m2::decode(value);
    return wide != wide;
  };
  const std::size_t rowBytes = quantisedBytes(elements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % rowBytes < elements) {
      if (isNan(values[i]) && isNan(expected[i])) values[i] = expected[i];
    } else if (i % rowBytes % sizeof(float) == 0) {
      float got, wanted;
      std::memcpy(&got, &values[i], sizeof got);
      std::memcpy(&wanted, &expected[i], sizeof wanted);
      if (got != got && wanted != wanted) std::memcpy(&values[i], &wanted, sizeof wanted);
    }
  }
}

template <typename Wide>
void thereAndBack(Random& random, moecclDataType_t narrow, moecclDataType_t wide,
                  std::size_t rowCount, std::size_t elements) {
  using Bits = typename Wide::Bits;
  const std::vector<Bits> rows = rowsOf<Wide>(random, rowCount * elements / kScaled);
  std::vector<std::byte> expected(rowCount * quantisedBytes(elements));
  std::vector<Bits> expectedBack(rows.size());
  const auto bytes = [](auto* at) { return reinterpret_cast<std::byte*>(at); };
  quantise(narrow, wide, reinterpret_cast<const std::byte*>(rows.data()), rowCount, elements,
           expected.data());
  dequantise(narrow, wide, expected.data(), rowCount, elements, bytes(expectedBack.data()));

  Device<Bits> from(rows, sizeof(Bits)), back(rows.size(), sizeof(Bits));
  Device<std::byte> to(expected.size(), 4);
  moeccl::cuda::quantise(narrow, wide, bytes(from.data()), rowCount, elements, to.data(), nullptr);
  moeccl::cuda::dequantise(narrow, wide, to.data(), rowCount, elements, bytes(back.data()),
                           nullptr);
  const std::string what = std::to_string(rowCount) + " rows of " + std::to_string(elements) +
                           ", type " + std::to_string(wide) + " to " + std::to_string(narrow);
  std::vector<std::byte> values = to.get(what);
  alikeNans(narrow, values, expected, elements);
  expectSame(values, expected, what);
  std::vector<Bits> valuesBack = back.get(what);
  for (std::size_t i = 0; i < valuesBack.size(); ++i) {
    const float got = Wide::decode(valuesBack[i]), wanted = Wide::decode(expectedBack[i]);
    if (got != got && wanted != wanted) valuesBack[i] = expectedBack[i];
  }
  expectSame(valuesBack, expectedBack, what + ", and back");
}

GPU_TEST(rowsAreQuantisedAsOnCpus) {
  for (const moecclDataType_t narrow : {moecclFloat8e4m3, moecclFloat8e5m2})
    for (const std::size_t rowCount : {0, 1, 33})
      for (const std::size_t elements : {kScaled, 7 * kScaled}) {
        thereAndBack<Unchanged<float>>(random, narrow, moecclFloat32, rowCount, elements);
        thereAndBack<Float16>(random, narrow, moecclFloat16, rowCount, elements);
        thereAndBack<Bfloat16>(random, narrow, moecclBfloat16, rowCount, elements);
      }
}

}  // namespace
}  // namespace moeccl::gpu
