// What ranks that have nothing but an all-gather learn first: where each of them runs, and who of
// them lives from then on.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/topology.h"
#include "src/bootstrap/host.h"
#include "src/bootstrap/oob.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/comm/settings.h"
#include "src/watch/watch.h"

namespace moeccl {

struct Introduction {
  std::vector<HostIdentity> hosts;  // by rank
  Topology topology;
  Secret secret;  // of the job; no reader of the all-gather learns it where Oob::key() is not empty
  std::unique_ptr<Watch> watch;
  int sharers = 1;       // ranksThatShare (cores.h),
  bool crowded = false;  // and crowdedAcrossGroups
};

// Collective. Throws Error.
Introduction introduce(Oob& oob, const Settings& settings);

}  // namespace moeccl
