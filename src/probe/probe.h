// The links of a job for which there is no profile: measured by its first communicator, and kept
// in the user's cache.
#pragma once

#include <chrono>
#include <memory>

#include "src/bootstrap/clock.h"
#include "src/comm/communicator.h"
#include "src/model/links.h"
#include "src/model/profile.h"

namespace moeccl {

// How long it may take in all, once ranks have connected, and the calls that links are measured by;
// what remains is for the fit.
inline constexpr double kProbeSeconds = 0.3, kProbeCallSeconds = 0.2;

// The time by which the calling thread measures links: the machine's, unless a test has another.
TimePoint probeTime();
inline double probeSecondsSince(TimePoint begun) {
  return std::chrono::duration<double>(probeTime() - begun).count();
}
// What probeTime() returns from now on; nullptr: the machine's. For tests.
void replaceProbeTime(TimePoint (*now)());

// Collective: a profile without samples whose links are the job's, as this process or the user's
// cache has them (src/probe/cache.h) or as they are measured now; costs that this does not tell are
// those of `typical`. The same on all ranks. nullptr: typical links hold. So it is of one rank, of
// threads of one process with buffers in host memory, where a GPU has no memory left, and where
// settings.probe is false. Throws what a call of the communicator throws.
std::shared_ptr<const Profile> probeLinks(Communicator& communicator, const Typical& typical);

}  // namespace moeccl
