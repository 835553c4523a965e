// Where a pass of a layer has failed.
#pragma once

#include "moeccl/moeccl.h"

namespace moeccl {

class Phases {
 public:
  const char* failedPhase() const { return failedPhase_; }
  // `result`; notes the phase when it is a failure.
  moecclResult_t noted(const char* phase, moecclResult_t result) {
    if (result != moecclSuccess) failedPhase_ = phase;
    return result;
  }

 private:
  const char* failedPhase_ = "";
};

}  // namespace moeccl
