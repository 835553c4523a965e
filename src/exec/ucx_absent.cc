// In place of ucx_*.cc where the library is built without UCX.
#include <stdexcept>

#include "src/exec/transport.h"

namespace moeccl {

std::unique_ptr<Transport> makeUcxTransport(int, int) {
  throw std::runtime_error(
      "ranks in several processes need UCX, and this library was built without it (meson -Ducx)");
}

}  // namespace moeccl
