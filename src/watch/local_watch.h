// The watch of ranks that are threads of one process, who die together: what one tells is handed to
// the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/bootstrap/rendezvous_id.h"
#include "src/watch/watch.h"

namespace moeccl {

// Ranks that bring the same secret meet. All must have joined before one of them tells anything.
std::unique_ptr<Watch> makeLocalWatch(const Secret& secret, int rank,
                                      std::vector<std::string> hosts);

}  // namespace moeccl
