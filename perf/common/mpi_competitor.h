// All that moeccl-perf knows of MPI; mpi_competitor.cc where it is there, mpi_competitor_absent.cc
// where it is not.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "perf/common/competitor.h"

namespace moeccl::perf {

class Mpi {
 public:
  virtual ~Mpi() = default;

  // A communicator of all ranks of MPI_COMM_WORLD. Collective.
  virtual moecclResult_t join(moecclComm_t* comm, const moecclConfig_t& config) = 0;
  // MPI's own version of `collective`. "default" is MPI's choice; other algorithms are set through
  // the control variables of Open MPI's component "tuned". Collective. Throws std::runtime_error
  // when this MPI has no such variable or algorithm.
  virtual std::unique_ptr<Competitor> competitor(const MeasuredCollective& collective,
                                                 const std::string& algorithm) = 0;
  virtual std::string version() const = 0;
  // Ends all ranks.
  [[noreturn]] virtual void abort(int code) = 0;
};

// Whether a launcher of MPI has started this process.
bool startedByMpi();
// Initialises MPI; the end of the object finalises it. `chooseAlgorithms`: competitors with an
// algorithm of their own will come. `environment`: NAME=VALUE, set only while MPI starts, which is
// when it and what it stands on read theirs. Throws std::runtime_error in a build without MPI.
std::unique_ptr<Mpi> startMpi(bool chooseAlgorithms, const std::vector<std::string>& environment);

}  // namespace moeccl::perf
