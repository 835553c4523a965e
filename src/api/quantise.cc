// Converts rows to and from float8, on the host or on the GPU of a communicator.
#include "kernels/quantise.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "kernels/reduce.h"
#include "moeccl/route.h"
#include "src/api/arguments.h"
#include "src/base/text.h"
#include "src/exec/gpu.h"

namespace moeccl {
namespace {

void requireType(const char* name, moecclDataType_t type, bool wide) {
  if (wide ? !isWide(type) : !isFloat8(type))
    invalid(std::string(name) + " is " + std::to_string(static_cast<int>(type)) +
            (wide ? "; it must be moecclFloat32, Float16 or Bfloat16"
                  : "; it must be moecclFloat8e4m3 or moecclFloat8e5m2"));
}

void requireSizes(std::int64_t rows, std::int64_t hidden) {
  constexpr auto kGroup = static_cast<std::int64_t>(kScaled);
  if (hidden < 1 || hidden % kGroup != 0 || hidden > std::numeric_limits<std::int32_t>::max())
    invalid("hidden is " + std::to_string(hidden) + "; it must be a multiple of 128");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / 8 / hidden;
  if (rows < 0 || rows > most)
    invalid("rows is " + std::to_string(rows) + "; it must be 0 to " + std::to_string(most));
}

// On the GPU of a communicator, in the order of a stream, or on the host at once.
moecclResult_t convert(const char* function, bool quantises, std::int64_t rows, std::int64_t hidden,
                       moecclDataType_t fromType, const void* from, moecclDataType_t toType,
                       void* to, moecclComm_t comm, moecclStream_t stream) {
  const HeldComm held = hold(comm);
  return boundary(function, lastErrorOf(held), [&] {
    requireType("fromType", fromType, quantises);
    requireType("toType", toType, !quantises);
    requireSizes(rows, hidden);
    const auto rowCount = static_cast<std::size_t>(rows),
               elements = static_cast<std::size_t>(hidden);
    const auto rowBytes = [&](moecclDataType_t type) {
      return isFloat8(type) ? quantisedBytes(elements) : elements * sizeOf(type);
    };
    requireRoom(
        {{"from", from, rowCount * rowBytes(fromType)}, {"to", to, rowCount * rowBytes(toType)}});
    const auto* const source = static_cast<const std::byte*>(from);
    auto* const target = static_cast<std::byte*>(to);
    const std::optional<Device> device =
        held.isNull() ? std::nullopt : communicatorOf(held).device();
    if (!device) {
      require(stream == nullptr,
              "stream is not NULL; rows in host memory are converted at once, so it must be NULL");
      return quantises ? quantise(toType, fromType, source, rowCount, elements, target)
                       : dequantise(fromType, toType, source, rowCount, elements, target);
    }
    // Rows of float8 have scales.
    const auto element = [](moecclDataType_t type) {
      return isFloat8(type) ? sizeof(float) : sizeOf(type);
    };
    requireAligned("from", from, element(fromType));
    requireAligned("to", to, element(toType));
    Gpu& gpu = *device->gpu;
    const OnDevice here(gpu, device->number);
    gpu.capture(stream);  // refuses those that must not be used now
    return quantises ? gpu.quantise(toType, fromType, source, rowCount, elements, target, stream)
                     : gpu.dequantise(fromType, toType, source, rowCount, elements, target, stream);
  });
}

}  // namespace
}  // namespace moeccl

moecclResult_t moecclQuantizeRows(int64_t rows, int64_t hidden, moecclDataType_t fromType,
                                  const void* from, moecclDataType_t toType, void* to,
                                  moecclComm_t comm, moecclStream_t stream) {
  return moeccl::convert("moecclQuantizeRows", true, rows, hidden, fromType, from, toType, to, comm,
                         stream);
}

moecclResult_t moecclDequantizeRows(int64_t rows, int64_t hidden, moecclDataType_t fromType,
                                    const void* from, moecclDataType_t toType, void* to,
                                    moecclComm_t comm, moecclStream_t stream) {
  return moeccl::convert("moecclDequantizeRows", false, rows, hidden, fromType, from, toType, to,
                         comm, stream);
}
