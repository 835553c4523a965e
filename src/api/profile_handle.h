// What moecclProfile_t points to.
#pragma once

#include <memory>

#include "moeccl/model.h"
#include "src/model/profile.h"

struct moecclProfile {
  std::shared_ptr<const moeccl::Profile> profile;
  moeccl::Profile open;  // the same, and samples that are not fitted yet
};

namespace moeccl {

// These throw Error: for a handle that is no profile, for times that no sample has.
moecclProfile& profileOf(moecclProfile_t profile);
void requireTimes(double seconds, double spread);

}  // namespace moeccl
