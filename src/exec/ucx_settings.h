// Where UCX is tuned, and nowhere else.
#pragma once

#include "src/exec/ucx.h"
#include "src/exec/ucx_handles.h"

namespace moeccl {

// UCX's configuration: the user's (UCX_* variables, ucx.conf), and our choices where a variable of
// the user does not speak. *tcp: whether it may use TCP. Throws std::runtime_error.
UcxConfig readUcxConfig(UcxReach reach, bool* tcp);

}  // namespace moeccl
