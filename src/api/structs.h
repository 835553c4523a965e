// The structs of the public headers that begin {size, magic, version}: whether they were initialised.
#pragma once

#include <algorithm>
#include <cstddef>

#include "moeccl/moeccl.h"
#include "src/error.h"
#include "src/text.h"

namespace moeccl {

// How a struct is called where it is wrong.
template <typename Struct>
struct StructKind {
  const char* argument;
  const char* initialiser;
  unsigned magic;
};

// Structs only grow: one from an older header is shorter than ours (never shorter than the first,
// which is today's), one from a newer header longer, by at most a page.
template <typename Struct>
void requireInitialised(const StructKind<Struct>& kind, const Struct* theirs) {
  constexpr std::size_t kLongest = 4096;
  if (theirs == nullptr)
    throw Error(moecclInvalidArgument,
                stringf("%s is NULL; begin with %s", kind.argument, kind.initialiser));
  if (theirs->magic != kind.magic || theirs->size < sizeof(Struct) || theirs->size > kLongest ||
      theirs->version == 0)
    throw Error(moecclInvalidArgument,
                stringf("%s was not initialised; begin with %s, and leave size, magic and version "
                        "alone",
                        kind.argument, kind.initialiser));
  if (theirs->version / 10000 != MOECCL_MAJOR)
    throw Error(moecclInvalidArgument,
                stringf("%s comes from a header of major version %u, this library is %d",
                        kind.argument, theirs->version / 10000, MOECCL_MAJOR));
}

// The fields that this library knows; others must be zero, which is their default.
template <typename Struct>
Struct readStruct(const StructKind<Struct>& kind, const Struct* theirs) {
  requireInitialised(kind, theirs);
  const auto* bytes = reinterpret_cast<const unsigned char*>(theirs);
  if (std::any_of(bytes + sizeof(Struct), bytes + theirs->size, [](unsigned char b) { return b; }))
    throw Error(moecclInvalidArgument,
                stringf("%s sets a field that this library does not know", kind.argument));
  Struct ours = *theirs;
  ours.size = sizeof ours;
  return ours;
}

}  // namespace moeccl
