#include <cstring>
#include <type_traits>

#include "kernels/reduce.h"
#include "kernels/small_float.h"

namespace moeccl {
namespace {

// Elements are loaded and stored by memcpy: messages are not always aligned to their type.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void sumOf(std::byte* dst, const std::byte* const* sources, std::size_t stride, std::size_t count,
           std::size_t bytes) {
  // Unsigned arithmetic for integers: overflow wraps instead of being undefined.
  using Sum = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                          std::type_identity<T>>::type;
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    Sum sum = static_cast<Sum>(load<T>(sources[0] + at));
    for (std::size_t i = 1; i < count; ++i)
      sum = static_cast<Sum>(sum + static_cast<Sum>(load<T>(sources[i * stride] + at)));
    std::memcpy(dst + at, &sum, sizeof(T));
  }
}

template <typename Small>
void sumOfSmall(std::byte* dst, const std::byte* const* sources, std::size_t stride,
                std::size_t count, std::size_t bytes) {
  using Bits = typename Small::Bits;
  for (std::size_t at = 0; at < bytes; at += sizeof(Bits)) {
    float sum = Small::decode(load<Bits>(sources[0] + at));
    for (std::size_t i = 1; i < count; ++i)
      sum += Small::decode(load<Bits>(sources[i * stride] + at));
    const Bits bits = Small::encode(sum);
    std::memcpy(dst + at, &bits, sizeof(Bits));
  }
}

}  // namespace

std::size_t sizeOf(moecclDataType_t datatype) {
  switch (datatype) {
    case moecclInt8:
    case moecclUint8:
    case moecclFloat8e4m3:
    case moecclFloat8e5m2:
      return 1;
    case moecclFloat16:
    case moecclBfloat16:
      return 2;
    case moecclInt32:
    case moecclUint32:
    case moecclFloat32:
      return 4;
    case moecclInt64:
    case moecclUint64:
    case moecclFloat64:
      return 8;
    default:
      return 0;
  }
}

void reduceSum(moecclDataType_t datatype, std::byte* dst, const std::byte* const* sources,
               std::size_t stride, std::size_t count, std::size_t bytes) {
  const auto sum = [&](auto function) { function(dst, sources, stride, count, bytes); };
  switch (datatype) {
    case moecclInt8:
      return sum(sumOf<std::int8_t>);
    case moecclUint8:
      return sum(sumOf<std::uint8_t>);
    case moecclInt32:
      return sum(sumOf<std::int32_t>);
    case moecclUint32:
      return sum(sumOf<std::uint32_t>);
    case moecclInt64:
      return sum(sumOf<std::int64_t>);
    case moecclUint64:
      return sum(sumOf<std::uint64_t>);
    case moecclFloat16:
      return sum(sumOfSmall<Float16>);
    case moecclFloat32:
      return sum(sumOf<float>);
    case moecclFloat64:
      return sum(sumOf<double>);
    case moecclBfloat16:
      return sum(sumOfSmall<Bfloat16>);
    case moecclFloat8e4m3:
      return sum(sumOfSmall<Float8e4m3>);
    case moecclFloat8e5m2:
      return sum(sumOfSmall<Float8e5m2>);
    default:
      return;
  }
}

}  // namespace moeccl
