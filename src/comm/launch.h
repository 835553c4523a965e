// From a call of a user to its start. Its arguments have been checked, but for the stream.
#pragma once

#include <memory>

#include "moeccl/moeccl.h"
#include "src/comm/communicator.h"

namespace moeccl {

// Throws Error where a host communicator is given what is no stream.
void requireStream(const Communicator& communicator, moecclStream_t stream);

// Chooses the algorithm of the call and starts it, or notes it where the thread has a group open.
// Throws Error.
void launch(moecclComm_t comm, const std::shared_ptr<Communicator>& communicator, Call call,
            moecclStream_t stream);

}  // namespace moeccl
