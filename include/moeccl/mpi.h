/* Adopts an MPI communicator. Header only: it uses the caller's MPI, libmoeccl links none. */
#ifndef MOECCL_MPI_H_
#define MOECCL_MPI_H_

#include <limits.h>
#include <moeccl/moeccl.h>
#include <mpi.h>

static inline int moecclMpiAllgather(const void* send, void* recv, size_t bytes, void* context) {
  if (bytes > INT_MAX) return 1;
  return MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                       *(MPI_Comm*)context) != MPI_SUCCESS;
}

/* Makes a communicator of the ranks of `mpiComm`, in their order. Collective over mpiComm, which is
 * used only inside this call. config NULL: defaults. Errors as moecclCommInitOob. */
static inline moecclResult_t moecclCommInitMpi(moecclComm_t* comm, MPI_Comm mpiComm,
                                               const moecclConfig_t* config) {
  int nRanks, rank;
  moecclOob_t oob;
  if (MPI_Comm_size(mpiComm, &nRanks) != MPI_SUCCESS ||
      MPI_Comm_rank(mpiComm, &rank) != MPI_SUCCESS)
    return moecclInvalidArgument;
  oob.allgather = moecclMpiAllgather;
  oob.context = &mpiComm;
  return moecclCommInitOob(comm, nRanks, rank, &oob, config);
}

#endif /* MOECCL_MPI_H_ */
