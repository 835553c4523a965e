// Tells on stderr of a call that waits in moeccl for so long that it may never end.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "settings.h"

namespace moeccl::mpi {

// A call of this thread that moeccl may serve, as long as this lives.
class Wait {
 public:
  // `start`: by PMPI_Wtime.
  Wait(Collective collective, std::size_t bytes, MPI_Comm comm, double start);
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Called again and again by a thread that waits in moeccl. Each wait that is told of is twice as
  // long as the one before.
  static void look();

 private:
  const Collective collective_;
  const std::size_t bytes_;
  const MPI_Comm comm_;
  const double start_;
  unsigned looks_ = 0;
};

}  // namespace moeccl::mpi
