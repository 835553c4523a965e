// A rank that comes late is waited for, as MPI waits. So a long wait is no error, and what it may
// mean is said instead.
#include "waits.h"

#include <atomic>
#include <cstdio>

namespace moeccl::mpi {
namespace {

// The guide names it.
constexpr double kLong = 10;  // seconds
// Most waits end before anybody asks for the time.
constexpr unsigned kLooksPerClock = 64;

thread_local Wait* waiting = nullptr;
// How long the next wait is that is told of: longer ones alone, so a late rank makes few lines, and
// a call that never ends is told of whatever was told before.
std::atomic<double> patience = kLong;

}  // namespace

Wait::Wait(Collective collective, std::size_t bytes, MPI_Comm comm, double start)
    : collective_(collective), bytes_(bytes), comm_(comm), start_(start) {
  waiting = this;
}

Wait::~Wait() { waiting = nullptr; }

void Wait::look() {
  Wait* const its = waiting;
  if (its == nullptr || ++its->looks_ % kLooksPerClock != 0) return;
  const double waited = PMPI_Wtime() - its->start_;
  if (waited < patience) return;
  patience = 2 * waited;
  int rank = 0;
  PMPI_Comm_rank(its->comm_, &rank);
  char size[40] = "";
  if (its->bytes_ > 0) std::snprintf(size, sizeof size, " of %zu bytes", its->bytes_);
  std::fprintf(stderr,
               "moeccl-mpi: rank %d: has waited for %.0f s in %s%s, and goes on waiting. If the "
               "call never ends, ranks may have passed different counts: MOECCL_TIMEOUT=10000 "
               "names the ranks that are waited for, and MOECCL_MPI=0 leaves all calls to MPI\n",
               rank, waited, kNames[static_cast<std::size_t>(its->collective_)], size);
}

}  // namespace moeccl::mpi
