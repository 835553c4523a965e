// In place of profile_json.cc, and of what it alone needs, where the library is built without
// nlohmann-json.
#include "src/base/error.h"
#include "src/model/profile.h"

namespace moeccl {
namespace {

[[noreturn]] void refuse() {
  throw Error(moecclInvalidUsage,
              "profiles are JSON, and this library was built without nlohmann-json");
}

}  // namespace

Profile parseProfile(std::string_view) { refuse(); }
std::string printProfile(const Profile&) { refuse(); }

}  // namespace moeccl
