/* moecclCommInitMpi and a collective, under mpirun. C99, and the header alone. */
#include <moeccl/mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(moecclResult_t result, const char* what) {
  if (result == moecclSuccess) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, moecclGetErrorString(result), moecclGetLastError(NULL));
  return 1;
}

static int allToAll(moecclComm_t comm) {
  int rank, ranks, i, wrong = 0;
  if (failed(moecclCommUserRank(comm, &rank), "rank") ||
      failed(moecclCommCount(comm, &ranks), "count"))
    return 1;
  int* send = malloc(sizeof(int) * (size_t)ranks);
  int* recv = malloc(sizeof(int) * (size_t)ranks);
  if (send == NULL || recv == NULL) return 1;
  for (i = 0; i < ranks; ++i) {
    send[i] = rank * 1000 + i;
    recv[i] = -1;
  }
  wrong |= failed(moecclAllToAll(send, recv, 1, moecclInt32, comm, NULL), "all-to-all");
  for (i = 0; i < ranks; ++i) wrong |= recv[i] != i * 1000 + rank;
  free(send);
  free(recv);
  return wrong;
}

int main(int argc, char** argv) {
  moecclComm_t world, odd;
  MPI_Comm halves;
  int rank, wrong;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  wrong = failed(moecclCommInitMpi(&world, MPI_COMM_WORLD, NULL), "init") || allToAll(world);
  /* A part of the job, in another order. */
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &halves);
  wrong |= failed(moecclCommInitMpi(&odd, halves, NULL), "init of a half") || allToAll(odd);
  wrong |= failed(moecclCommDestroy(odd), "destroy") || failed(moecclCommDestroy(world), "destroy");
  MPI_Comm_free(&halves);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
  if (rank == 0) printf("%s\n", wrong ? "wrong" : "right");
  MPI_Finalize();
  return wrong;
}
