#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
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
      reduceSum(type, sum.data() + 1, pointers.data(), 1, terms, count * size);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), sum.begin() + 1))
          << "type " << type << ", " << terms << " terms, " << count;
    }
}

TEST(ReduceSum, EveryType) {
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

TEST(ReduceSum, IntegersWrapAndStrideSelectsTerms) {
  const std::int32_t a = 0x7fffffff, b = 1, unrelated = 5;
  const std::byte* sources[] = {
      reinterpret_cast<const std::byte*>(&a), reinterpret_cast<const std::byte*>(&unrelated),
      reinterpret_cast<const std::byte*>(&b), reinterpret_cast<const std::byte*>(&unrelated)};
  std::int32_t sum = 0;
  reduceSum(moecclInt32, reinterpret_cast<std::byte*>(&sum), sources, 2, 2, sizeof(sum));
  EXPECT_EQ(sum, std::numeric_limits<std::int32_t>::min());
}

TEST(ReduceSum, IntoOneOfItsSources) {
  float a[3] = {1, 2, 3}, b[3] = {10, 20, 30};
  const std::byte* sources[] = {reinterpret_cast<std::byte*>(a), reinterpret_cast<std::byte*>(b)};
  reduceSum(moecclFloat32, reinterpret_cast<std::byte*>(b), sources, 1, 2, sizeof(b));
  EXPECT_EQ(b[0], 11);
  EXPECT_EQ(b[2], 33);
}

TEST(SizeOf, EveryType) {
  for (int type = 0; type < moecclNumTypes; ++type)
    EXPECT_GT(sizeOf(static_cast<moecclDataType_t>(type)), 0u) << type;
  EXPECT_EQ(sizeOf(moecclNumTypes), 0u);
  EXPECT_EQ(sizeOf(static_cast<moecclDataType_t>(-1)), 0u);
}

}  // namespace
}  // namespace moeccl
