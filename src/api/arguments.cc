// Checks arguments of public functions: each check throws Error with a text that names the
// argument.
#include "src/api/arguments.h"

#include <cstdint>
#include <limits>
#include <stdexcept>

#include "algorithms/choice.h"
#include "kernels/reduce.h"
#include "src/base/text.h"
#include "src/comm/call.h"
#include "src/model/schedule_list.h"

namespace moeccl {

void invalid(const std::string& text) { throw Error(moecclInvalidArgument, text); }

bool isWide(moecclDataType_t type) {
  return type == moecclFloat32 || type == moecclFloat16 || type == moecclBfloat16;
}

bool isFloat8(moecclDataType_t type) {
  return type == moecclFloat8e4m3 || type == moecclFloat8e5m2;
}

std::string typeText(std::int64_t datatype) {
  if (datatype < 0 || datatype >= moecclNumTypes) return std::to_string(datatype);
  return std::string(typeName(static_cast<moecclDataType_t>(datatype)));
}

std::string scheduleText(std::int64_t schedule) {
  if (schedule < 0 || schedule >= scheduleNumbers()) return std::to_string(schedule);
  return nameOf(static_cast<moecclSchedule_t>(schedule));
}

std::string nameAt(std::span<const char* const> names, std::int64_t place) {
  if (place < 0 || place >= std::ssize(names)) return std::to_string(place);
  return names[static_cast<std::size_t>(place)];
}

std::size_t elementBytes(moecclDataType_t datatype) {
  const std::size_t size = sizeOf(datatype);
  if (size == 0)
    throw Error(moecclInvalidArgument, "datatype is " + std::to_string(static_cast<int>(datatype)) +
                                           "; it must be one of moecclDataType_t");
  return size;
}

Collective collectiveOf(const char* name) {
  try {
    return readCollective(name);
  } catch (const std::invalid_argument& error) {
    throw Error(moecclInvalidArgument, error.what());
  }
}

void requireOp(moecclRedOp_t op, moecclDataType_t datatype) {
  if (op < 0 || op >= moecclNumOps)
    throw Error(moecclInvalidArgument, "op is " + std::to_string(static_cast<int>(op)) +
                                           "; it must be one of moecclRedOp_t, moecclSum to "
                                           "moecclBitXor");
  const bool isFloat = datatype == moecclFloat16 || datatype == moecclFloat32 ||
                       datatype == moecclFloat64 || datatype == moecclBfloat16 ||
                       datatype == moecclFloat8e4m3 || datatype == moecclFloat8e5m2;
  if (op >= moecclBitAnd && isFloat)
    throw Error(moecclInvalidArgument, "op is " + std::to_string(static_cast<int>(op)) +
                                           ", a bitwise one; datatype must be one of integers");
}

Bytes bytesOf(std::size_t count, const char* countName, moecclDataType_t datatype,
              long long blocks) {
  const std::size_t size = elementBytes(datatype), parts = static_cast<std::size_t>(blocks);
  const std::size_t most =
      static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / size / parts;
  if (count > most)
    throw Error(moecclInvalidArgument, std::string(countName) + " is " + std::to_string(count) +
                                           "; " + std::to_string(blocks) +
                                           " blocks of it exceed the address space");
  return {count * size, count * size * parts};
}

bool overlap(const void* a, std::size_t aBytes, const void* b, std::size_t bBytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + bBytes && y < x + aBytes;
}

void requireRoom(std::initializer_list<NamedBuffer> buffers) {
  for (auto one = buffers.begin(); one != buffers.end(); ++one) {
    if (one->at == nullptr && one->bytes > 0)
      invalid(std::string(one->name) + " is NULL; it must have room for " +
              std::to_string(one->bytes) + " bytes");
    for (auto other = buffers.begin(); other != one; ++other)
      if (overlap(one->at, one->bytes, other->at, other->bytes))
        invalid(std::string(other->name) + " and " + one->name + " overlap");
  }
}

void requireAligned(const char* name, const void* at, std::size_t element) {
  if (reinterpret_cast<std::uintptr_t>(at) % element != 0)
    invalid(std::string(name) + " is at an address that is no multiple of " +
            std::to_string(element) + "; on GPUs it must be");
}

}  // namespace moeccl
