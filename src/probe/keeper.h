// What rank 0 does for all: it tells the job's cluster from others, and knows what links cost
// there, from this process, from the user's cache, or from what was measured just now.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/bootstrap/clock.h"
#include "src/comm/communicator.h"
#include "src/model/links.h"
#include "src/model/profile.h"

namespace moeccl {

// What rank 0 knows, and tells the others.
struct Known {
  int found = 0;
  int processors = 0;
  LinkFit fit;
};

// A profile without samples whose links are the known ones.
std::shared_ptr<Profile> profileOf(const Fingerprint& mine, const Known& known);

class Keeper {
 public:
  // `mine` gets what rank 0's host tells of itself.
  Keeper(const Communicator& communicator, Fingerprint& mine);

  // Nothing is found where links have to be measured.
  Known known();
  // Keeps what it returns. copySeconds: of a copy, per byte; 0: not measured. `begun`: when the
  // probe did, which bounds the fit.
  Known fit(std::vector<Curve> curves, double copySeconds, Links typical, TimePoint begun);

 private:
  void keep(const Known& known, std::size_t samples);

  Fingerprint& mine_;
  const LogSource source_;
  const std::string folder_;
  std::string cluster_;
};

}  // namespace moeccl
