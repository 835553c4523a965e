// What the opaque handles of the C API point to.
#pragma once

#include <memory>
#include <string>

#include "moeccl/moeccl.h"
#include "src/api/boundary.h"
#include "src/comm/communicator.h"
#include "src/comm/stream.h"

struct moecclComm {
  std::unique_ptr<moeccl::Communicator> communicator;
  std::string lastError;
};

namespace moeccl {

inline Communicator& communicatorOf(moecclComm_t comm) {
  require(comm != nullptr, "comm is NULL; pass a communicator made by moecclCommInit... or Split");
  return *comm->communicator;
}

inline std::string* lastErrorOf(moecclComm_t comm) {
  return comm == nullptr ? nullptr : &comm->lastError;
}

inline Stream* streamOf(moecclStream_t stream) { return static_cast<Stream*>(stream); }

}  // namespace moeccl
