// What moecclProfile_t points to, and how communicators come to use a profile.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moeccl/model.h"
#include "src/api/handles.h"
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

using ProfileSource = std::function<std::shared_ptr<const Profile>()>;
// The ranks of `state` take the profile that `source` gives on each of them, or all of them fail,
// even if something is wrong on one rank only. Collective. Throws Error.
void adoptProfile(CommState& state, const ProfileSource& source);

// The fingerprint of the cluster that a communicator spans. Collective. All ranks get the same.
Fingerprint fingerprintOf(Communicator& communicator);

}  // namespace moeccl
