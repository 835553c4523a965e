// The floating-point types that layers on GPUs compute with.
#pragma once

#include "kernels/reduce_ops.h"
#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {

// Calls function(Format{}) for the format of float32, float16 or bfloat16, and returns what it
// returns. Throws Error for others; `what` are of that type.
template <typename Function>
auto withFloatFormat(const char* what, moecclDataType_t datatype, Function function) {
  switch (datatype) {
    case moecclFloat32:
      return function(Unchanged<float>{});
    case moecclFloat16:
      return function(Float16{});
    case moecclBfloat16:
      return function(Bfloat16{});
    default:
      throw Error(moecclInvalidArgument,
                  stringf("%s of datatype %d; on a GPU they are float32 (%d), float16 (%d) or "
                          "bfloat16 (%d)",
                          what, datatype, moecclFloat32, moecclFloat16, moecclBfloat16));
  }
}

}  // namespace moeccl
