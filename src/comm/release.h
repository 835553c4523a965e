// Communicators whose end nobody waits for.
#pragma once

#include <memory>

#include "src/comm/communicator.h"

namespace moeccl {

// A thread of the library destroys the communicator, which is idle. Where the process ends first,
// the other ranks are told that this one has left.
void releaseLater(std::shared_ptr<Communicator> communicator);

}  // namespace moeccl
