// What moecclProfile_t points to.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "moeccl/model.h"
#include "src/model/profile.h"

// Samples are collected here, and are part of the profile once they are fitted.
struct moecclProfile {
  std::shared_ptr<const moeccl::Profile> profile;
  std::vector<moeccl::Curve> curves;  // without fits
  std::array<std::vector<moeccl::LocalSample>, 2> local;
};

namespace moeccl {

// These throw Error: for a handle that is no profile, for times that no sample has.
moecclProfile& profileOf(moecclProfile_t profile);
void requireTimes(double seconds, double spread);

}  // namespace moeccl
