/* Rank 0 computes for seconds after a call over a slow uplink; rank 1 must not wait for that.
 *
 *   moeccl-lab run -- leaves_early   (two nodes of one rank)
 *
 * The last bytes of what rank 0 has sent are still on their way when its data has been taken from
 * it. */
#define _POSIX_C_SOURCE 200809L

#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kRanks = 2, kBytes = 1000000, kCalls = 3, kSeconds = 2 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void require(moecclResult_t result, moecclComm_t comm) {
  if (result == moecclSuccess) return;
  fprintf(stderr, "%s\n", moecclGetLastError(comm));
  exit(1);
}

int main(void) {
  moecclComm_t comm;
  int rank, ranks, call, late = 0;
  require(moecclCommInitEnv(&comm, NULL), NULL);
  require(moecclCommUserRank(comm, &rank), comm);
  require(moecclCommCount(comm, &ranks), comm);
  if (ranks != kRanks) return 1;
  char* data = calloc(1, kBytes);
  if (data == NULL) return 1;

  for (call = 0; call < kCalls; ++call) {
    /* Rank 0 sends to rank 1 alone. */
    const size_t sends[kRanks] = {0, rank == 0 ? kBytes : 0};
    const size_t receives[kRanks] = {rank == 1 ? kBytes : 0, 0};
    const size_t displacements[kRanks] = {0, 0};
    unsigned char one = 0;
    require(moecclAllReduce(&one, &one, 1, moecclUint8, moecclSum, comm, NULL), comm);
    const double begin = now();
    require(moecclAllToAllv(rank == 0 ? data : NULL, sends, displacements, rank == 1 ? data : NULL,
                            receives, displacements, moecclUint8, comm, NULL),
            comm);
    const double seconds = now() - begin;
    printf("rank %d: call %d took %.3f s\n", rank, call, seconds);
    if (rank == 0) sleep(kSeconds);
    late |= rank == 1 && seconds > 0.75 * kSeconds;
  }
  free(data);
  require(moecclCommDestroy(comm), NULL);
  return late;
}
