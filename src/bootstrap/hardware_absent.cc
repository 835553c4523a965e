// In place of hardware.cc where the library is built without hwloc: what the C library knows.
#include <unistd.h>

#include "src/base/text.h"
#include "src/bootstrap/hardware.h"

namespace moeccl {

Hardware describeHardware() {
  Hardware hardware;
  hardware.processors = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  hardware.summary = stringf("%d PUs, %.0f GiB", hardware.processors, bytes / (1 << 30));
  return hardware;
}

}  // namespace moeccl
