// In place of mpi_competitor.cc in a build without MPI.
#include <stdexcept>

#include "perf/common/mpi_competitor.h"

namespace moeccl::perf {

bool startedByMpi() { return false; }

std::unique_ptr<Mpi> startMpi(bool, const std::vector<std::string>&) {
  throw std::runtime_error(
      "this moeccl-perf was built without MPI: install libopenmpi-dev and configure with "
      "-Dmpi=enabled");
}

}  // namespace moeccl::perf
