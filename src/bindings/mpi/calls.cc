// Tells errors of arguments from others, refuses NULL as MPI would, and finds out why this rank
// cannot make a call as it stands.
#include "calls.h"

#include <cstdio>
#include <string>

namespace moeccl::mpi {

int rankOf(MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  return rank;
}

bool isOfArguments(int code) {
  int kind = MPI_SUCCESS;
  PMPI_Error_class(code, &kind);
  return kind == MPI_ERR_TYPE || kind == MPI_ERR_COUNT || kind == MPI_ERR_ARG ||
         kind == MPI_ERR_BUFFER || kind == MPI_ERR_OP;
}

Doubt doubtOf(const Parts& in, std::size_t from, const Parts& out, std::size_t to) {
  if (in.bytes(from) != out.bytes(to))
    return {MPI_ERR_TRUNCATE, "this rank sends " + std::to_string(in.bytes(from)) +
                                  " bytes to itself where it receives " +
                                  std::to_string(out.bytes(to))};
  for (const Parts* each : {&in, &out})
    if (!each->canBePacked())
      return {MPI_ERR_TYPE,
              "this rank has elements of " + std::to_string(sizeOf(each->type)) +
                  " bytes that are not contiguous, and others have not; beyond 1 GiB all must"};
  return {};
}

int refusedNull(int code, const char* what, MPI_Comm comm) {
  return refused(comm, [&] {
    std::fprintf(stderr, "moeccl-mpi: rank %d: %s is NULL\n", rankOf(comm), what);
    PMPI_Comm_call_errhandler(comm, code);
    return code;
  });
}

}  // namespace moeccl::mpi
