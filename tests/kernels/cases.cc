// The rows of the table: kernels, types and sizes.
#include "tests/kernels/cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "tests/kernels/plain.h"

namespace moeccl {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937;
using Visit = std::function<void(const KernelCase&)>;

constexpr std::size_t kAround = 16;  // bytes before and after each output, at least

const char* nameOf(moecclDataType_t datatype) {
  static const char* const kNames[] = {"int8",       "uint8",      "int32",   "uint32",  "int64",
                                       "uint64",     "float16",    "float32", "float64", "bfloat16",
                                       "float8e4m3", "float8e5m2", "int16",   "uint16"};
  static_assert(std::size(kNames) == moecclNumTypes);
  return kNames[datatype];
}

const char* nameOf(moecclRedOp_t op) {
  static const char* const kNames[] = {"sum", "prod", "max", "min", "avg", "and", "or", "xor"};
  static_assert(std::size(kNames) == moecclNumOps);
  return kNames[op];
}

bool isFloat(moecclDataType_t datatype) {
  return narrowFormat(datatype) != nullptr || datatype == moecclFloat32 ||
         datatype == moecclFloat64;
}

// Calls function(T{}, encode): encode makes an element of `datatype` from a number of type T.
template <typename Function>
void withType(moecclDataType_t datatype, Function function) {
  const auto same = [](auto value) { return value; };
  if (const NarrowFormat* const format = narrowFormat(datatype))
    return function(float{}, [format](float value) { return plainEncode(*format, value); });
  if (datatype == moecclFloat32) return function(float{}, same);
  if (datatype == moecclFloat64) return function(double{}, same);
  return function(int{}, same);
}

Bytes randomBytes(Random& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Large data is a small one again and again, at no distance that code would have.
Bytes repeated(const Bytes& part, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t at = 0; at < size; at += part.size())
    std::memcpy(&bytes[at], part.data(), std::min(part.size(), size - at));
  return bytes;
}

// Integers of all bits; floats that are mostly of one magnitude, so that sums depend on all terms,
// some of all bits, and some of each special value.
Bytes elements(Random& random, moecclDataType_t datatype, std::size_t count) {
  constexpr std::size_t kDifferent = 1009;
  const std::size_t size = sizeOf(datatype);
  Bytes values = randomBytes(random, kDifferent * size);
  withType(datatype, [&]<typename T>(T, auto encode) {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::is_floating_point_v<T>) {
      const T special[] = {0, Limits::infinity(), Limits::quiet_NaN(), Limits::max(),
                           Limits::denorm_min()};
      for (std::size_t at = 0; at < values.size(); at += size) {
        T value = std::uniform_real_distribution<T>(-4, 4)(random);
        const unsigned kind = random() % 32;
        if (kind == 0) continue;
        if (kind <= 2) value = special[random() % std::size(special)];
        if (kind == 2) value = -value;
        const auto element = encode(value);
        std::memcpy(&values[at], &element, size);
      }
    }
  });
  return repeated(values, count * size);
}

void settleNans(moecclDataType_t datatype, std::size_t offset, Bytes& output) {
  const std::size_t size = sizeOf(datatype);
  const NarrowFormat* const format = narrowFormat(datatype);
  withType(datatype, [&]<typename T>(T, auto encode) {
    if constexpr (std::is_floating_point_v<T>) {
      for (std::size_t at = offset; at + size <= output.size(); at += size) {
        T value{};
        unsigned bits = 0;
        std::memcpy(format == nullptr ? static_cast<void*>(&value) : &bits, output.data() + at,
                    size);
        if (!std::isnan(format == nullptr ? value : plainDecode(*format, bits))) continue;
        const auto element = encode(std::numeric_limits<T>::quiet_NaN());
        std::memcpy(output.data() + at, &element, size);
      }
    }
  });
}

struct Size {
  std::size_t elements, misalignment;
  bool timed;
};

void reduceCase(moecclRedOp_t op, moecclDataType_t datatype, std::size_t terms, const Size& size,
                const Visit& visit) {
  Random random(1);
  const std::size_t bytes = size.elements * sizeOf(datatype);
  std::vector<Bytes> data;
  std::vector<const std::byte*> sources;
  for (std::size_t term = 0; term < terms; ++term) {
    Bytes source = elements(random, datatype, size.elements);
    source.insert(source.begin(), size.misalignment, std::byte{0});
    data.push_back(std::move(source));
  }
  for (const Bytes& source : data) sources.push_back(source.data() + size.misalignment);

  const std::size_t offset = kAround + size.misalignment;
  Bytes fast(offset + bytes + kAround, std::byte{0x5a}), plain = fast;
  visit(
      {.kernel = "reduce",
       .type = nameOf(datatype),
       .op = nameOf(op),
       .shape = std::to_string(terms) + " x " + std::to_string(size.elements),
       .timed = size.timed,
       .bytes = (terms + 1) * bytes,
       .fast = [&] { reduce(op, datatype, &fast[offset], sources.data(), 1, terms, bytes); },
       .plain = [&] { plainReduce(op, datatype, &plain[offset], sources.data(), 1, terms, bytes); },
       .settle =
           [&](Bytes& output) {
             if (op == moecclSum || op == moecclProd) settleNans(datatype, offset, output);
           },
       .fastOutput = &fast,
       .plainOutput = &plain});
}

void reduceCases(const Visit& visit) {
  // Those of one tile of the kernel, and around it, are among them for each type.
  const Size sizes[] = {{0, 0, false},    {1, 0, false},    {1, 1, false},    {3, 1, false},
                        {17, 3, false},   {256, 1, false},  {511, 0, false},  {513, 5, false},
                        {2047, 1, false}, {2049, 0, false}, {10007, 1, false}};
  const Size timed[] = {{1024, 0, true}, {1 << 18, 0, true}};
  for (int type = 0; type < moecclNumTypes; ++type)
    for (int number = 0; number < moecclNumOps; ++number) {
      const auto datatype = static_cast<moecclDataType_t>(type);
      const auto op = static_cast<moecclRedOp_t>(number);
      if (op == moecclAvg || (op >= moecclBitAnd && isFloat(datatype))) continue;
      for (std::size_t terms : {1, 2, 3, 8})
        for (const Size& size : sizes) reduceCase(op, datatype, terms, size, visit);
      for (std::size_t terms : {2, 8})
        for (const Size& size : timed) reduceCase(op, datatype, terms, size, visit);
    }
}

// `apart`: by how many blocks, and bytes, the blocks of a side are spaced.
struct Layout {
  const char* name;
  std::size_t dstApart, dstGap, srcApart, srcGap;
};

void copyCase(const Layout& layout, std::size_t bytes, std::size_t count, bool timed,
              const Visit& visit) {
  Random random(1);
  const std::size_t dstStride = bytes * layout.dstApart + layout.dstGap;
  const std::size_t srcStride = bytes * layout.srcApart + layout.srcGap;
  const Bytes source = repeated(randomBytes(random, 4093), count * srcStride + 1);
  Bytes fast(count * dstStride + 2 * kAround + 1, std::byte{0x5a}), plain = fast;
  const auto call = [&](auto copy, Bytes& output) {
    copy(&output[kAround], static_cast<std::ptrdiff_t>(dstStride), &source[layout.srcGap % 2],
         static_cast<std::ptrdiff_t>(srcStride), bytes, static_cast<std::int64_t>(count));
  };
  visit({.kernel = "copy",
         .type = std::to_string(bytes) + " B",
         .op = layout.name,
         .shape = std::to_string(count) + " blocks",
         .timed = timed,
         .bytes = 2 * count * bytes,
         .fast = [&] { call(copyBlocks, fast); },
         .plain = [&] { call(plainCopyBlocks, plain); },
         .settle = [](Bytes&) {},
         .fastOutput = &fast,
         .plainOutput = &plain});
}

void copyCases(const Visit& visit) {
  const Layout layouts[] = {
      {"dense", 1, 0, 1, 0}, {"gather", 1, 0, 4, 0}, {"scatter", 4, 0, 1, 0}, {"odd", 1, 5, 2, 3}};
  for (const Layout& layout : layouts) {
    for (std::size_t bytes = 0; bytes <= 130; ++bytes)
      for (std::size_t count : {0, 1, 2, 7, 100}) copyCase(layout, bytes, count, false, visit);
    for (std::size_t bytes : {1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 48, 63, 64, 96, 256, 4096})
      for (std::size_t total : {1 << 14, 1 << 20})
        copyCase(layout, bytes, total / bytes, true, visit);
  }
}

}  // namespace

void forEachCase(const Visit& visit) {
  reduceCases(visit);
  copyCases(visit);
}

}  // namespace moeccl
