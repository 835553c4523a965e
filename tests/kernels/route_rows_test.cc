// The kernels of token routing against plain loops: weighted sums, their gradients, and rows of
// float8.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/small_float.h"
#include "kernels/weigh.h"

namespace moeccl {
namespace {

using Bytes = std::vector<std::byte>;

float load(const std::byte* from, std::size_t i, moecclDataType_t type) {
  if (type == moecclFloat32) {
    float value;
    std::memcpy(&value, from + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from + 2 * i, 2);
  return type == moecclFloat16 ? Float16::decode(bits) : Bfloat16::decode(bits);
}

void store(std::byte* to, std::size_t i, float value, moecclDataType_t type) {
  if (type == moecclFloat32) {
    std::memcpy(to + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == moecclFloat16 ? Float16::encode(value) : Bfloat16::encode(value);
  std::memcpy(to + 2 * i, &bits, 2);
}

float narrowed(std::byte bits, moecclDataType_t type) {
  const auto byte = static_cast<std::uint8_t>(bits);
  return type == moecclFloat8e4m3 ? Float8e4m3::decode(byte) : Float8e5m2::decode(byte);
}

constexpr moecclDataType_t kWide[] = {moecclFloat32, moecclFloat16, moecclBfloat16};
constexpr moecclDataType_t kNarrow[] = {moecclFloat8e4m3, moecclFloat8e5m2};

// Elements at odd addresses.
struct Row {
  Row(moecclDataType_t its, std::size_t count) : type(its), bytes(1 + count * sizeOf(its)) {}
  std::byte* data() { return bytes.data() + 1; }
  float at(std::size_t i) { return load(data(), i, type); }
  void set(std::size_t i, float value) { store(data(), i, value, type); }
  moecclDataType_t type;
  Bytes bytes;
};

// Weights are powers of two: products are exact, so that only the order of the sum counts.
TEST(WeightedSums, AgainstPlainLoops) {
  std::mt19937 random(3);
  for (const moecclDataType_t type : kWide)
    for (const std::size_t elements : {1, 15, 512, 1300})
      for (const std::size_t count : {1, 2, 9}) {
        constexpr std::size_t kStride = 3;
        std::vector<Row> rows(count, Row(type, elements));
        std::vector<const std::byte*> sources(kStride * count, nullptr);
        std::vector<float> weights(sources.size(), 99);
        for (std::size_t term = 0; term < count; ++term) {
          for (std::size_t i = 0; i < elements; ++i)
            rows[term].set(i, std::ldexp(static_cast<float>(random() % 2047) - 1023,
                                         static_cast<int>(random() % 12) - 12));
          sources[kStride * term] = rows[term].data();
          weights[kStride * term] = std::ldexp(1.0f, static_cast<int>(random() % 5) - 2);
        }
        Row sum(type, elements), expected(type, elements);
        for (std::size_t i = 0; i < elements; ++i) {
          float value = weights[0] * rows[0].at(i);
          for (std::size_t term = 1; term < count; ++term)
            value += weights[kStride * term] * rows[term].at(i);
          expected.set(i, value);
        }
        addWeighted(type, sum.data(), sources.data(), weights.data(), kStride, count,
                    elements * sizeOf(type));
        EXPECT_EQ(sum.bytes, expected.bytes) << type << ", " << elements << " x " << count;
      }
}

TEST(WeightGradients, AgainstPlainLoops) {
  std::mt19937 random(4);
  for (const moecclDataType_t type : kWide)
    for (const std::size_t elements : {0, 1, 15, 16, 33, 1024}) {
      Row row(type, elements), gradient(type, elements), expected(type, elements);
      float sum = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        row.set(i, static_cast<float>(random() % 9) - 4);
        gradient.set(i, static_cast<float>(random() % 9) - 4);
        sum += row.at(i) * gradient.at(i);
        expected.set(i, 0.25f * gradient.at(i));
      }
      EXPECT_EQ(weighGradient(type, gradient.data(), row.data(), 0.25f, elements * sizeOf(type)),
                sum);
      EXPECT_EQ(gradient.bytes, expected.bytes) << type << ", " << elements;
    }
}

class Quantised : public testing::TestWithParam<std::tuple<moecclDataType_t, moecclDataType_t>> {};

TEST_P(Quantised, ComesBackWithinHalfAPlaceOfTheLargest) {
  const auto [narrow, wide] = GetParam();
  const float most = narrow == moecclFloat8e4m3 ? 448.0f : 57344.0f;
  // Half of the last place, relatively, and of the smallest number, of what is 1 when the largest
  // is `most`.
  const float relative = narrow == moecclFloat8e4m3 ? 1.0f / 16 : 1.0f / 8;
  const float absolute = narrow == moecclFloat8e4m3 ? 0x1p-10f : 0x1p-17f;
  const float ofWide = wide == moecclFloat32   ? 0x1p-22f
                       : wide == moecclFloat16 ? 0x1p-10f
                                               : 0x1p-7f;
  std::mt19937 random(5);
  for (const std::size_t groups : {1, 3})
    for (const std::size_t count : {0, 1, 5}) {
      const std::size_t elements = groups * kScaled;
      Row rows(wide, elements * count), back(wide, elements * count);
      for (std::size_t i = 0; i < elements * count; ++i)
        rows.set(i, std::ldexp(static_cast<float>(random() % 2001) - 1000,
                               static_cast<int>(i / kScaled % 3) * 4 - 8));
      Bytes quantised(1 + quantisedBytes(elements) * count);
      quantise(narrow, wide, rows.data(), count, elements, quantised.data() + 1);
      dequantise(narrow, wide, quantised.data() + 1, count, elements, back.data());
      for (std::size_t group = 0; group < groups * count; ++group) {
        float high = 0;
        for (std::size_t i = 0; i < kScaled; ++i)
          high = std::max(high, std::abs(rows.at(group * kScaled + i)));
        const std::byte* const row =
            quantised.data() + 1 + group / groups * quantisedBytes(elements);
        float scale;
        std::memcpy(&scale, row + elements + group % groups * 4, 4);
        EXPECT_FLOAT_EQ(scale, high / most);
        for (std::size_t i = 0; i < kScaled; ++i) {
          const float value = rows.at(group * kScaled + i), got = back.at(group * kScaled + i);
          EXPECT_NEAR(got, value, std::abs(value) * (relative + ofWide) + absolute * scale * 1.01f);
          const float exact = narrowed(row[group % groups * kScaled + i], narrow) * scale;
          Row rounded(wide, 1);
          rounded.set(0, exact);
          EXPECT_EQ(got, rounded.at(0));
        }
      }
    }
}

TEST_P(Quantised, SpecialNumbers) {
  const auto [narrow, wide] = GetParam();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float special : {0.0f, -0.0f, kInfinity, -kInfinity, std::nanf("")}) {
    Row rows(wide, 2 * kScaled), back(wide, 2 * kScaled);
    for (std::size_t i = 0; i < kScaled; ++i) {
      rows.set(i, special);
      rows.set(kScaled + i, 3);  // beside it
    }
    Bytes quantised(quantisedBytes(2 * kScaled));
    quantise(narrow, wide, rows.data(), 1, 2 * kScaled, quantised.data());
    dequantise(narrow, wide, quantised.data(), 1, 2 * kScaled, back.data());
    for (std::size_t i = 0; i < kScaled; ++i) {
      if (special == 0)
        EXPECT_EQ(back.at(i), 0);
      else
        EXPECT_TRUE(std::isnan(back.at(i))) << special;
      EXPECT_NEAR(back.at(kScaled + i), 3, 0x1p-6f);
    }
  }
  if (wide != moecclFloat32) return;
  Row tiny(wide, kScaled), back(wide, kScaled);
  for (std::size_t i = 0; i < kScaled; ++i) tiny.set(i, std::numeric_limits<float>::denorm_min());
  Bytes quantised(quantisedBytes(kScaled));
  quantise(narrow, wide, tiny.data(), 1, kScaled, quantised.data());
  dequantise(narrow, wide, quantised.data(), 1, kScaled, back.data());
  for (std::size_t i = 0; i < kScaled; ++i) EXPECT_EQ(back.at(i), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, Quantised,
                         testing::Combine(testing::ValuesIn(kNarrow), testing::ValuesIn(kWide)));

}  // namespace
}  // namespace moeccl
