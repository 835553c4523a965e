// The structs of the public headers that begin {size, magic, version}: read from callers of every
// release, and written for them. Such a struct grows at its end only, and 0 is the default of every
// field.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "moeccl/moeccl.h"

namespace moeccl {

// How a struct is called where it is wrong, and its size in the first release that had it.
struct StructName {
  const char* argument;
  const char* initialiser;
  unsigned magic;
  std::size_t firstSize;
};

// Where `field` ends.
#define MOECCL_END_OF(Struct, field) (offsetof(Struct, field) + sizeof(Struct::field))

// One for each struct, beside the code that reads it. A new field changes `size` alone, which names
// it.
template <typename Struct>
struct StructKind : StructName {
  // firstSize: the end of the last field of the first release; size: of the last field.
  consteval StructKind(const char* argument, const char* initialiser, unsigned magic,
                       std::size_t firstSize, std::size_t size)
      : StructName{argument, initialiser, magic, firstSize} {
    // A field that took the place of padding would be read from what older callers never set.
    if (size != sizeof(Struct)) throw "the struct ends with padding, or with another field";
  }
};

// What every such struct begins with.
struct StructHeader {
  std::size_t size;
  unsigned magic;
  unsigned version;
};

// Throws InvalidArgument unless `theirs` was initialised by a header of this major version.
StructHeader requireInitialised(const StructName& name, const void* theirs);
// The same, and throws also unless what lies beyond `known` bytes of it is 0.
StructHeader requireKnown(const StructName& name, const void* theirs, std::size_t known);

// MOECCL_VERSION as people write it.
std::string versionText(unsigned version);

// The caller's struct as one of this library's. What an older caller does not have is 0; what this
// library does not have must be 0.
template <typename Struct>
Struct readStruct(const StructKind<Struct>& kind, const Struct* theirs) {
  Struct ours{};
  const StructHeader header = requireKnown(kind, theirs, sizeof ours);
  std::memcpy(&ours, static_cast<const void*>(theirs), std::min(header.size, sizeof ours));
  ours.size = sizeof ours;
  return ours;
}

// Hands out what the caller's struct has room for; what this library does not have stays as it was
// initialised.
template <typename Struct>
void writeStruct(const StructKind<Struct>& kind, const Struct& ours, Struct* theirs) {
  const StructHeader header = requireInitialised(kind, theirs);
  constexpr std::size_t kBegin = sizeof(StructHeader);
  std::memcpy(reinterpret_cast<unsigned char*>(theirs) + kBegin,
              reinterpret_cast<const unsigned char*>(&ours) + kBegin,
              std::min(header.size, sizeof ours) - kBegin);
}

}  // namespace moeccl
