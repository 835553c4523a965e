// What the launcher of this process says in its environment: which rank it is, of how many, and how
// ranks find each other. The first launcher in this table whose two variables are set counts.
//
//   moeccl-lab run, shell scripts   MOECCL_RANK           MOECCL_NRANKS
//   torchrun                        RANK                  WORLD_SIZE
//   Open MPI's mpirun               OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE
//   MPICH's and Intel's mpirun      PMI_RANK              PMI_SIZE
//   srun                            SLURM_PROCID          SLURM_NTASKS
//
// Ranks find each other
//
//   by a file     of the unique id: MOECCL_ID_FILE is its path
//   at a port     else, where MASTER_ADDR and MASTER_PORT are set: rank 0 listens there, or one
//                 above where torchrun keeps that for itself. Who connects proves that it has
//                 MOECCL_SECRET; MOECCL_TRUSTED_NETWORK=1 lets in whoever connects
//   by a file     else, of the job's name in the working folder, where the launcher names its jobs
//                 (srun, Open MPI)
#pragma once

#include <cstdint>
#include <string>

#include "src/base/environment.h"
#include "src/bootstrap/rendezvous_id.h"

namespace moeccl {

struct LaunchedRank {
  int rank = 0, ranks = 1;
  // The variables that say so; empty: no launcher has started this process, which is one rank.
  std::string rankVariable, ranksVariable;
  // One of these where there are several ranks.
  std::string idFile;
  std::string host;
  std::uint16_t port = 0;  // of the host; 0: ranks get the id by the file
  Secret secret{};         // with which ranks meet there

  // "rank 2 of 16, by SLURM_PROCID and SLURM_NTASKS,"
  std::string text() const;
};

// Throws Error (moecclInvalidArgument) that names the variable that is wrong or missing.
LaunchedRank findLaunch(const Environment& environment = processEnvironment());

}  // namespace moeccl
