// How communicators come to use a profile.
#pragma once

#include <functional>
#include <memory>

#include "src/comm/communicator.h"
#include "src/model/profile.h"

namespace moeccl {

using ProfileSource = std::function<std::shared_ptr<const Profile>()>;
// The ranks take the profile that `source` gives on each of them, or all of them fail, even if
// something is wrong on one rank only. Collective. Throws Error.
void adoptProfile(Communicator& communicator, const ProfileSource& source);

// The fingerprint of the cluster that a communicator spans. Collective. All ranks get the same.
Fingerprint fingerprintOf(Communicator& communicator);

}  // namespace moeccl
