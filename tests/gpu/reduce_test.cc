// Reductions on a GPU, of every type and operator.
#include "kernels/reduce.h"

#include <cmath>
#include <limits>
#include <memory>

#include "kernels/reduce_ops.h"
#include "src/base/error.h"
#include "tests/gpu/check.h"
#include "tests/kernels/plain.h"

namespace moeccl::gpu {
namespace {

template <typename Format>
bool isNan(typename Format::Bits bits) {
  return Format::decode(bits) != Format::decode(bits);
}

// Any bits, those of NaN, infinity and the smallest numbers among them.
template <typename Bits>
std::vector<Bits> anyBits(Random& random, std::size_t count) {
  std::vector<Bits> values(count);
  for (Bits& value : values) {
    const std::uint64_t word = std::uint64_t{random()} << 32 | random();
    std::memcpy(&value, &word, sizeof value);
  }
  return values;
}

// `into`: the source that is the target too, or -1.
template <typename Format>
void reduceOnce(Random& random, moecclRedOp_t op, moecclDataType_t datatype, std::size_t terms,
                std::size_t elements, std::size_t shift, int into) {
  using Bits = typename Format::Bits;
  std::vector<std::vector<Bits>> hosts;
  std::vector<std::unique_ptr<Device<Bits>>> devices;
  std::vector<const std::byte*> sources, deviceSources;
  const auto bytes = [](auto* at) { return reinterpret_cast<const std::byte*>(at); };
  for (std::size_t term = 0; term < terms; ++term) {
    hosts.push_back(anyBits<Bits>(random, elements));
    devices.push_back(std::make_unique<Device<Bits>>(hosts.back(), shift));
    // Every second one counts.
    for (int i = 0; i < 2; ++i) deviceSources.push_back(bytes(devices.back()->data()));
  }
  for (const auto& host : hosts) sources.push_back(bytes(host.data()));
  std::vector<Bits> expected(elements);
  reduce(op, datatype, reinterpret_cast<std::byte*>(expected.data()), sources.data(), 1, terms,
         elements * sizeof(Bits));
  Device<Bits> fresh(elements, shift);
  Device<Bits>& result = into < 0 ? fresh : *devices[into];
  moeccl::cuda::reduce(op, datatype, reinterpret_cast<std::byte*>(result.data()),
                       deviceSources.data(), 2, terms, elements * sizeof(Bits), nullptr);
  std::vector<Bits> values = result.get("reduce");
  for (std::size_t i = 0; i < elements; ++i)  // which NaN it is may differ
    if (isNan<Format>(values[i]) && isNan<Format>(expected[i])) values[i] = expected[i];
  expectSame(values, expected,
             "type " + std::to_string(datatype) + " op " + std::to_string(op) + ", " +
                 std::to_string(terms) + " x " + std::to_string(elements) + " shifted by " +
                 std::to_string(shift));
}

GPU_TEST(reductionsOfEveryTypeAndOperator) {
  std::vector<std::size_t> sizes = {0, 1, 17, 1023};
  if (!quick()) sizes.push_back(300007);
  for (int type = 0; type < moecclNumTypes; ++type)
    for (moecclRedOp_t op :
         {moecclSum, moecclMax, moecclMin, moecclProd, moecclBitAnd, moecclBitOr, moecclBitXor})
      for (std::size_t terms : {1, 2, 3, 9})
        for (std::size_t elements : sizes)
          for (std::size_t shift : {0, 1}) {
            const auto datatype = static_cast<moecclDataType_t>(type);
            const int into = random() % 2 == 0 ? -1 : static_cast<int>(random() % terms);
            withFormat(datatype, [&]<typename Format>(Format) {
              reduceOnce<Format>(random, op, datatype, terms, elements, shift, into);
            });
          }
}

// Every number, plus numbers by which the sum lies on a border between two, beside it, beyond the
// largest, or is none.
template <typename Format>
void roundSums(moecclDataType_t datatype) {
  using Bits = typename Format::Bits;
  const NarrowFormat& format = *narrowFormat(datatype);
  const auto magnitude = static_cast<Bits>((1u << (format.exponent + format.mantissa)) - 1);
  const auto infinity = static_cast<Bits>(magnitude >> format.mantissa << format.mantissa);
  std::vector<Bits> firsts, seconds;
  for (unsigned bits = 0; bits <= std::numeric_limits<Bits>::max(); ++bits) {
    const float value = plainDecode(format, bits);
    const unsigned half = plainEncode(format, std::ldexp(value, -1 - format.mantissa));
    for (const unsigned second : {0u, half, half + 1, half - 1, bits, bits ^ (magnitude + 1u), 1u,
                                  unsigned{infinity}, unsigned{magnitude}}) {
      firsts.push_back(static_cast<Bits>(bits));
      seconds.push_back(static_cast<Bits>(second));
    }
  }
  std::vector<Bits> expected(firsts.size());
  const auto bytes = [](const auto* at) { return reinterpret_cast<const std::byte*>(at); };
  const std::byte* const sources[] = {bytes(firsts.data()), bytes(seconds.data())};
  const std::size_t size = firsts.size() * sizeof(Bits);
  plainReduce(moecclSum, datatype, reinterpret_cast<std::byte*>(expected.data()), sources, 1, 2,
              size);
  Device<Bits> first(firsts), second(seconds), result(firsts.size());
  const std::byte* const deviceSources[] = {bytes(first.data()), bytes(second.data())};
  moeccl::cuda::reduce(moecclSum, datatype, reinterpret_cast<std::byte*>(result.data()),
                       deviceSources, 1, 2, size, nullptr);
  std::vector<Bits> values = result.get("reduce");
  for (std::size_t i = 0; i < values.size(); ++i)
    if (isNan<Format>(values[i]) && isNan<Format>(expected[i])) values[i] = expected[i];
  expectSame(values, expected, "sums of type " + std::to_string(datatype));
}

// GPUs from 8.0 on convert by instructions, the others, and the emulation, by bits.
GPU_TEST(sumsOfNarrowNumbersRoundAsThePlainLoopsDo) {
  roundSums<Float16>(moecclFloat16);
  roundSums<Bfloat16>(moecclBfloat16);
  roundSums<Float8e4m3>(moecclFloat8e4m3);
  roundSums<Float8e5m2>(moecclFloat8e5m2);
}

GPU_TEST(divisionsOfEveryType) {
  for (int type = 0; type < moecclNumTypes; ++type)
    for (std::size_t elements : {0, 1, 1023})
      for (std::int64_t divisor : {1, 3, 8}) {
        const auto datatype = static_cast<moecclDataType_t>(type);
        withFormat(datatype, [&]<typename Format>(Format) {
          using Bits = typename Format::Bits;
          std::vector<Bits> expected = anyBits<Bits>(random, elements);
          Device<Bits> device(expected, 0);
          const std::size_t bytes = elements * sizeof(Bits);
          divide(datatype, reinterpret_cast<std::byte*>(expected.data()), bytes, divisor);
          moeccl::cuda::divide(datatype, reinterpret_cast<std::byte*>(device.data()), bytes,
                               divisor, nullptr);
          std::vector<Bits> values = device.get("divide");
          for (std::size_t i = 0; i < elements; ++i)
            if (isNan<Format>(values[i]) && isNan<Format>(expected[i])) values[i] = expected[i];
          expectSame(values, expected,
                     "type " + std::to_string(type) + " by " + std::to_string(divisor));
        });
      }
}

GPU_TEST(reductionsOfVeryManyTerms) {
  reduceOnce<Bfloat16>(random, moecclSum, moecclBfloat16, 500, 33, 0, -1);
  std::vector<const std::byte*> sources(501, nullptr);
  try {
    moeccl::cuda::reduce(moecclSum, moecclFloat32, nullptr, sources.data(), 1, 501, 4, nullptr);
    expect(false, "501 terms were taken");
  } catch (const Error& error) {
    expect(error.result() == moecclInvalidUsage, "501 terms are an invalid usage");
  }
}

}  // namespace
}  // namespace moeccl::gpu
