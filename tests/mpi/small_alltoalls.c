/* An MPI program of a user: 4000 times MPI_Alltoall of one int for each rank, whose results are
 * checked.
 *
 *   mpirun -np 4 small_alltoalls [ARGUMENT]...
 *
 * ROUNDS in the environment is another number of calls. Rank 0 prints its argc. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  int rank, ranks, from, round;
  const char* rounds = getenv("ROUNDS");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int* sent = malloc((size_t)ranks * sizeof *sent);
  int* received = malloc((size_t)ranks * sizeof *received);
  for (round = 0; round < (rounds ? atoi(rounds) : 4000); ++round) {
    for (from = 0; from < ranks; ++from) sent[from] = 100 * rank + from + round;
    MPI_Alltoall(sent, 1, MPI_INT, received, 1, MPI_INT, MPI_COMM_WORLD);
    for (from = 0; from < ranks; ++from)
      if (received[from] != 100 * from + rank + round) MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (rank == 0) printf("argc %d\n", argc);
  return MPI_Finalize();
}
