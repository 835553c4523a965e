// How far a pass of a layer has come, and where it has failed.
#pragma once

#include "moeccl/moeccl.h"

namespace moeccl {

class Phases {
 public:
  const char* failedPhase() const { return failedPhase_; }
  // The last phase that did not fail; "": none in this pass.
  virtual const char* lastPhase() const { return lastPhase_; }
  virtual void beginPass() { lastPhase_ = ""; }
  // `result`; notes the phase.
  moecclResult_t noted(const char* phase, moecclResult_t result) {
    (result == moecclSuccess ? lastPhase_ : failedPhase_) = phase;
    return result;
  }

 protected:
  ~Phases() = default;

 private:
  const char* failedPhase_ = "";
  const char* lastPhase_ = "";
};

}  // namespace moeccl
