// The one exception of the control path. src/api turns it into its result code and its text into
// moecclGetLastError.
#pragma once

#include <stdexcept>
#include <string>

#include "moeccl/moeccl.h"

namespace moeccl {

class Error : public std::runtime_error {
 public:
  // `text` names what is wrong (argument, rank, peer) and what would be right; no final full stop.
  Error(moecclResult_t result, const std::string& text)
      : std::runtime_error(text), result_(result) {}

  moecclResult_t result() const { return result_; }

 private:
  moecclResult_t result_;
};

}  // namespace moeccl
