/* MPI_Alltoall under moeccl-mpi beside MPI's own of the same program (PMPI), in turns.
 *
 *   moeccl-lab mpirun -- -np 16 moeccl-mpi alltoall_times [TURNS]
 *
 * Prints, for blocks of 1 byte to 1 MiB, MPI's time of a call in microseconds, and how many times
 * faster it is under moeccl-mpi: the median over turns, in brackets the quartiles. The time of a
 * turn is that of the slowest rank, divided by its calls. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kMostTurns = 101, kLargest = 1 << 20, kFirstCalls = 40 };

typedef int Call(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm);

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double seconds(Call* call, const char* from, char* to, int bytes, int calls) {
  double start, own, slowest;
  PMPI_Barrier(MPI_COMM_WORLD);
  start = PMPI_Wtime();
  for (int i = 0; i < calls; ++i) call(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);
  own = (PMPI_Wtime() - start) / calls;
  PMPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

int main(int argc, char** argv) {
  int rank, ranks, turns = argc > 1 ? atoi(argv[1]) : 11;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (turns < 1 || turns > kMostTurns) {
    if (rank == 0) fprintf(stderr, "TURNS must be from 1 to %d\n", kMostTurns);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  char* from = calloc((size_t)ranks, kLargest);
  char* to = calloc((size_t)ranks, kLargest);
  if (from == NULL || to == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0)
    printf("| bytes per block | MPI, us | times faster | quartiles |\n|---:|---:|---:|---:|\n");
  for (int bytes = 1; bytes <= kLargest; bytes *= 4) {
    double theirs[kMostTurns], ratio[kMostTurns];
    /* Trials of the shim, and how long a call takes: a turn has as many as take 0.1 s. */
    seconds(MPI_Alltoall, from, to, bytes, kFirstCalls);
    const double once = seconds(PMPI_Alltoall, from, to, bytes, 2);
    const int calls = once > 0.05 ? 1 : once < 1e-4 ? 1000 : (int)(0.1 / once);
    for (int turn = 0; turn < turns; ++turn) {
      const int first = turn % 2;
      double both[2];
      both[first] = seconds(first ? MPI_Alltoall : PMPI_Alltoall, from, to, bytes, calls);
      both[!first] = seconds(first ? PMPI_Alltoall : MPI_Alltoall, from, to, bytes, calls);
      theirs[turn] = both[0];
      ratio[turn] = both[0] / both[1];
    }
    qsort(theirs, (size_t)turns, sizeof *theirs, compare);
    qsort(ratio, (size_t)turns, sizeof *ratio, compare);
    if (rank == 0) {
      printf("| %d | %.0f | %.2f | %.2f to %.2f |\n", bytes, 1e6 * theirs[turns / 2],
             ratio[turns / 2], ratio[turns / 4], ratio[3 * turns / 4]);
      fflush(stdout);
    }
  }
  free(from);
  free(to);
  return MPI_Finalize();
}
