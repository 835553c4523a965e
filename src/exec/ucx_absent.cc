// In place of ucx_*.cc where the library is built without UCX.
#include <stdexcept>

#include "src/exec/ucx.h"

namespace moeccl {

std::unique_ptr<PollableTransport> makeUcxTransport(int, int, const UcxOptions&) {
  throw std::runtime_error("this library was built without UCX (meson -Ducx)");
}

bool ucxFindsRdma() { return false; }

std::string missingSharedMemory(int) { return "this library was built without UCX"; }

bool hasUcx() { return false; }

}  // namespace moeccl
