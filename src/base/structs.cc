// Checks the size, magic and version that a struct begins with, and what a newer header has added
// to it.
#include "src/base/structs.h"

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// No struct will be longer; what claims to be was not initialised.
constexpr std::size_t kLongest = 4096;

[[noreturn]] void uninitialised(const StructName& name, const std::string& what) {
  throw Error(moecclInvalidArgument,
              stringf("%s was not initialised (%s); begin with %s, and leave size, magic and "
                      "version alone",
                      name.argument, what.c_str(), name.initialiser));
}

}  // namespace

std::string versionText(unsigned version) {
  return stringf("%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

StructHeader requireInitialised(const StructName& name, const void* theirs) {
  if (theirs == nullptr)
    throw Error(moecclInvalidArgument,
                stringf("%s is NULL; begin with %s", name.argument, name.initialiser));
  StructHeader header;
  std::memcpy(&header, theirs, sizeof header);
  if (header.magic != name.magic)
    uninitialised(name, stringf("magic is 0x%08x, not 0x%08x", header.magic, name.magic));
  if (header.size < name.firstSize || header.size > kLongest)
    uninitialised(
        name, stringf("size is %zu; it is from %zu to %zu", header.size, name.firstSize, kLongest));
  if (header.version == 0) uninitialised(name, "version is 0");
  if (header.version / 10000 != MOECCL_MAJOR)
    throw Error(moecclInvalidArgument,
                stringf("%s comes from a header of version %s, this library is %s", name.argument,
                        versionText(header.version).c_str(), versionText(MOECCL_VERSION).c_str()));
  return header;
}

StructHeader requireKnown(const StructName& name, const void* theirs, std::size_t known) {
  const StructHeader header = requireInitialised(name, theirs);
  const auto* bytes = static_cast<const unsigned char*>(theirs);
  for (std::size_t at = known; at < header.size; ++at)
    if (bytes[at] != 0)
      throw Error(
          moecclInvalidArgument,
          stringf("%s sets a field (at byte %zu) that the header of version %s has and this "
                  "library, %s, has not",
                  name.argument, at, versionText(header.version).c_str(),
                  versionText(MOECCL_VERSION).c_str()));
  return header;
}

}  // namespace moeccl
