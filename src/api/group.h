// Calls between moecclGroupStart and GroupEnd.
#pragma once

#include "src/api/handles.h"

namespace moeccl {

// Starts a call whose arguments have been checked, or notes it where the thread has a group open.
// Throws Error.
void launch(const HeldComm& comm, Call call, moecclStream_t stream);

}  // namespace moeccl
