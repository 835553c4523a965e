// Reductions whose results are known: wrap-around, NaN, signs of zero.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/small_float.h"

namespace moeccl {
namespace {

// Small integers are exact in every type, so every order of adding gives the same sum.
template <typename Encode>
void sumsSmallIntegers(moecclDataType_t type, Encode encode) {
  const std::size_t size = sizeOf(type);
  for (std::size_t terms : {1, 2, 3, 8})
    for (std::size_t count : {0, 1, 7, 100}) {
      // Unaligned on purpose.
      std::vector<std::vector<std::byte>> sources(terms, std::vector<std::byte>(count * size + 1));
      std::vector<const std::byte*> pointers;
      std::vector<std::byte> expected(count * size), sum(count * size + 1);
      for (std::size_t i = 0; i < count; ++i) {
        int total = 0;
        for (std::size_t t = 0; t < terms; ++t) {
          const int value = static_cast<int>((i + 3 * t) % 2);
          total += value;
          const auto bits = encode(value);
          static_assert(sizeof(bits) <= 8);
          std::memcpy(sources[t].data() + 1 + i * size, &bits, size);
        }
        const auto bits = encode(total);
        std::memcpy(expected.data() + i * size, &bits, size);
      }
      for (const auto& source : sources) pointers.push_back(source.data() + 1);
      reduce(moecclSum, type, sum.data() + 1, pointers.data(), 1, terms, count * size);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sum.begin() + 1))
          << "type " << type << ", " << terms << " terms, " << count;
    }
}

TEST(Reduce, SumsOfEveryType) {
  const auto plain = []<typename T>(T) { return [](int value) { return static_cast<T>(value); }; };
  sumsSmallIntegers(moecclInt8, plain(std::int8_t{}));
  sumsSmallIntegers(moecclUint8, plain(std::uint8_t{}));
  sumsSmallIntegers(moecclInt32, plain(std::int32_t{}));
  sumsSmallIntegers(moecclUint32, plain(std::uint32_t{}));
  sumsSmallIntegers(moecclInt64, plain(std::int64_t{}));
  sumsSmallIntegers(moecclUint64, plain(std::uint64_t{}));
  sumsSmallIntegers(moecclFloat32, plain(float{}));
  sumsSmallIntegers(moecclFloat64, plain(double{}));
  sumsSmallIntegers(moecclFloat16, [](int v) { return Float16::encode(static_cast<float>(v)); });
  sumsSmallIntegers(moecclBfloat16, [](int v) { return Bfloat16::encode(static_cast<float>(v)); });
  sumsSmallIntegers(moecclFloat8e4m3,
                    [](int v) { return Float8e4m3::encode(static_cast<float>(v)); });
  sumsSmallIntegers(moecclFloat8e5m2,
                    [](int v) { return Float8e5m2::encode(static_cast<float>(v)); });
}

TEST(Reduce, IntegersWrapAndStrideSelectsTerms) {
  const std::int32_t a = 0x7fffffff, b = 1, unrelated = 5;
  const std::byte* sources[] = {
      reinterpret_cast<const std::byte*>(&a), reinterpret_cast<const std::byte*>(&unrelated),
      reinterpret_cast<const std::byte*>(&b), reinterpret_cast<const std::byte*>(&unrelated)};
  std::int32_t sum = 0;
  reduce(moecclSum, moecclInt32, reinterpret_cast<std::byte*>(&sum), sources, 2, 2, sizeof(sum));
  EXPECT_EQ(sum, std::numeric_limits<std::int32_t>::min());
}

// Longer than what the kernel takes at once, into each source.
TEST(Reduce, IntoOneOfItsSources) {
  constexpr std::size_t kCount = 3001;
  for (std::size_t into : {0, 1, 2}) {
    std::vector<float> data[3];
    const std::byte* sources[3];
    for (std::size_t t = 0; t < 3; ++t) {
      data[t].assign(kCount, 0);
      for (std::size_t i = 0; i < kCount; ++i) data[t][i] = static_cast<float>(i << (4 * t));
      sources[t] = reinterpret_cast<const std::byte*>(data[t].data());
    }
    reduce(moecclSum, moecclFloat32, reinterpret_cast<std::byte*>(data[into].data()), sources, 1, 3,
           kCount * sizeof(float));
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(data[into][i], static_cast<float>(i * 0x111)) << i << " into " << into;
  }
}

template <typename T>
T reduced(moecclRedOp_t op, moecclDataType_t datatype, const std::vector<T>& terms) {
  std::vector<const std::byte*> sources;
  for (const T& term : terms) sources.push_back(reinterpret_cast<const std::byte*>(&term));
  T result{};
  reduce(op, datatype, reinterpret_cast<std::byte*>(&result), sources.data(), 1, sources.size(),
         sizeof(T));
  return result;
}

TEST(Reduce, LargestAndSmallest) {
  EXPECT_EQ(reduced<std::int8_t>(moecclMax, moecclInt8, {-3, 5, -128}), 5);
  EXPECT_EQ(reduced<std::int8_t>(moecclMin, moecclInt8, {-3, 5, -128}), -128);
  EXPECT_EQ(reduced<std::uint8_t>(moecclMax, moecclUint8, {3, 200, 5}), 200);
  EXPECT_EQ(reduced<std::uint64_t>(moecclMin, moecclUint64, {1ull << 63, 7, 9}), 7u);
  EXPECT_EQ(reduced<double>(moecclMax, moecclFloat64, {-1, -HUGE_VAL, -2}), -1);
  EXPECT_EQ(reduced<float>(moecclMin, moecclFloat32, {1, HUGE_VALF, 2}), 1);
  const auto e5m2 = [](float value) { return Float8e5m2::encode(value); };
  EXPECT_EQ(reduced<std::uint8_t>(moecclMax, moecclFloat8e5m2, {e5m2(-1), e5m2(-4), e5m2(-2)}),
            e5m2(-1));
}

// Wherever the NaN stands among the terms.
template <typename T, typename Encode, typename Decode>
void keepsNan(moecclDataType_t datatype, Encode encode, Decode decode) {
  for (moecclRedOp_t op : {moecclSum, moecclMax, moecclMin})
    for (std::size_t place : {0, 1, 2}) {
      std::vector<T> terms = {encode(1), encode(-2), encode(3)};
      terms[place] = encode(std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(std::isnan(decode(reduced<T>(op, datatype, terms))))
          << "type " << datatype << ", operator " << op << ", NaN at " << place;
    }
}

template <typename Small>
void keepsSmallNan(moecclDataType_t datatype) {
  keepsNan<typename Small::Bits>(datatype, Small::encode, Small::decode);
}

TEST(Reduce, NanWhereAnyTermIs) {
  const auto same = [](auto value) { return value; };
  keepsNan<float>(moecclFloat32, same, same);
  keepsNan<double>(moecclFloat64, same, same);
  keepsSmallNan<Float16>(moecclFloat16);
  keepsSmallNan<Bfloat16>(moecclBfloat16);
  keepsSmallNan<Float8e4m3>(moecclFloat8e4m3);
  keepsSmallNan<Float8e5m2>(moecclFloat8e5m2);
}

TEST(Reduce, OfOppositeZerosTheLater) {
  for (moecclRedOp_t op : {moecclMax, moecclMin}) {
    EXPECT_TRUE(std::signbit(reduced<float>(op, moecclFloat32, {0.0f, -0.0f})));
    EXPECT_FALSE(std::signbit(reduced<float>(op, moecclFloat32, {-0.0f, 0.0f})));
  }
}

TEST(Reduce, UnknownOperatorsAndTypesDoNothing) {
  for (int op : {-1, int{moecclAvg}, int{moecclNumOps}})
    EXPECT_EQ(reduced<int>(static_cast<moecclRedOp_t>(op), moecclInt32, {3, 4}), 0);
  EXPECT_EQ(reduced<int>(moecclSum, moecclNumTypes, {3, 4}), 0);
}

TEST(Reduce, ProductsAndBits) {
  EXPECT_EQ(reduced<std::int16_t>(moecclProd, moecclInt16, {-3, 5, 100}), -1500);
  EXPECT_EQ(reduced<std::uint16_t>(moecclProd, moecclUint16, {0xffff, 0xffff}), 1);
  EXPECT_EQ(reduced<float>(moecclProd, moecclFloat32, {0.5f, 3, -4}), -6);
  EXPECT_EQ(reduced<std::uint8_t>(moecclBitAnd, moecclUint8, {0xf3, 0x3f}), 0x33);
  EXPECT_EQ(reduced<std::int64_t>(moecclBitOr, moecclInt64, {1, -8, 2}), -5);
  EXPECT_EQ(reduced<std::uint32_t>(moecclBitXor, moecclUint32, {6, 3, 1}), 4u);
}

template <typename T>
T quotient(moecclDataType_t datatype, T value, std::int64_t divisor) {
  divide(datatype, reinterpret_cast<std::byte*>(&value), sizeof value, divisor);
  return value;
}

TEST(Divide, EveryKindOfNumber) {
  EXPECT_EQ(quotient<float>(moecclFloat32, 7, 2), 3.5f);
  EXPECT_EQ(quotient<double>(moecclFloat64, 1, 3), 1.0 / 3);
  EXPECT_EQ(quotient<int>(moecclInt32, -7, 2), -3);
  EXPECT_EQ(quotient<std::int8_t>(moecclInt8, 100, 1000), 0);
  EXPECT_EQ(quotient<std::uint64_t>(moecclUint64, ~0ull, 16), ~0ull / 16);
  EXPECT_EQ(quotient(moecclBfloat16, Bfloat16::encode(257 * 2), 4), Bfloat16::encode(128));
  EXPECT_EQ(quotient(moecclFloat8e4m3, Float8e4m3::encode(3), 2), Float8e4m3::encode(1.5f));
  EXPECT_EQ(quotient<int>(moecclNumTypes, 3, 2), 3);
  std::vector<std::int16_t> many(1001, 30);
  divide(moecclInt16, reinterpret_cast<std::byte*>(many.data() + 1), 2 * 999, 3);
  EXPECT_EQ(many[0], 30);
  EXPECT_EQ(many[1], 10);
  EXPECT_EQ(many[999], 10);
  EXPECT_EQ(many[1000], 30);
}

TEST(SizeOf, EveryType) {
  for (int type = 0; type < moecclNumTypes; ++type)
    EXPECT_GT(sizeOf(static_cast<moecclDataType_t>(type)), 0u) << type;
  EXPECT_EQ(sizeOf(moecclNumTypes), 0u);
  EXPECT_EQ(sizeOf(static_cast<moecclDataType_t>(-1)), 0u);
}

}  // namespace
}  // namespace moeccl
