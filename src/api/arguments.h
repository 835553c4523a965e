// Checks of arguments that public functions share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "algorithms/collective.h"
#include "src/api/handles.h"

namespace moeccl {

[[noreturn]] void invalid(const std::string& text);

// Float32, Float16 or Bfloat16; and the float8 types.
bool isWide(moecclDataType_t type);
bool isFloat8(moecclDataType_t type);
// "float32"; the number of what is no datatype.
std::string typeText(std::int64_t datatype);
// "S1"; the number of what is no schedule.
std::string scheduleText(std::int64_t schedule);
// The name at that place; the number of what has none.
std::string nameAt(std::span<const char* const> names, std::int64_t place);
// The size of an element; throws Error for no datatype.
std::size_t elementBytes(moecclDataType_t datatype);
// The collective of that name. Throws Error where there is none.
Collective collectiveOf(const char* name);
// Throws Error unless `op` is a reduction that elements of this type have.
void requireOp(moecclRedOp_t op, moecclDataType_t datatype);

// `blocks` blocks of `count` elements.
struct Bytes {
  std::size_t block;
  std::size_t buffer;
};
// Throws Error where that exceeds the address space.
Bytes bytesOf(std::size_t count, const char* countName, moecclDataType_t datatype,
              long long blocks);

bool overlap(const void* a, std::size_t aBytes, const void* b, std::size_t bBytes);
struct NamedBuffer {
  const char* name;
  const void* at;
  std::size_t bytes;
  std::size_t element = 0;  // that kernels of GPUs compute with there, if they do
};
// Throws Error where a buffer of more than 0 bytes is NULL, or two overlap.
void requireRoom(std::initializer_list<NamedBuffer> buffers);
// Throws Error where `at` is no multiple of `element`: kernels of GPUs cannot compute with elements
// there.
void requireAligned(const char* name, const void* at, std::size_t element);

// Hands out a text as explanations are: *bytes is the room, and becomes what the whole takes.
inline void requireRoom(const char* text, const std::size_t* bytes) {
  require(bytes != nullptr, "bytes is NULL; pass how much room text has");
  require(text != nullptr || *bytes == 0, "text is NULL while bytes is above 0");
}
inline void handOut(const std::string& all, char* text, std::size_t* bytes) {
  if (*bytes > 0) text[all.copy(text, *bytes - 1)] = '\0';
  *bytes = all.size() + 1;
}

}  // namespace moeccl
