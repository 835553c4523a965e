// From a call to what its plan runs on: where blocks lie, and how large they are.
#pragma once

#include <cstddef>
#include <vector>

#include "algorithms/plan.h"
#include "src/comm/call.h"
#include "src/exec/placement.h"

namespace moeccl {

// `scratch` keeps what the operands refer to, like `call`. `told`: for a call of allToAllv without
// a bound whose plan keeps blocks in scratch, the size of each, as 64-bit numbers one after
// another; for others nullptr.
Operands operandsOf(const Call& call, const Plan& plan, const std::byte* told,
                    std::vector<Extent>* scratch);

}  // namespace moeccl
