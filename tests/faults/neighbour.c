/* One rank of a job beside which a stranger does what he can. It has a progress thread.
 *
 *   neighbour sleep          says "ready", sleeps until its standard input ends, sums a number over
 *                            all ranks, and says "right" or why not
 *   neighbour flood BYTES    rank 1 sends rank 0 messages of BYTES, which nobody receives, until it
 *                            has to wait; rank 0 says every half second how much memory it has in
 *                            KiB, and ends with its input
 */
#define _POSIX_C_SOURCE 200809L

#include <moeccl/moeccl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char* what, moecclComm_t comm) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(comm));
  return 1;
}

static int inputHasEnded(int milliseconds) {
  char byte;
  struct pollfd input = {0, POLLIN, 0};
  return poll(&input, 1, milliseconds) > 0 && read(0, &byte, 1) <= 0;
}

static int sleepAndSum(moecclComm_t comm, int rank, int ranks) {
  int mine = rank + 1, sum = 0;
  puts("ready");
  fflush(stdout);
  while (!inputHasEnded(-1)) {
  }
  if (moecclAllReduce(&mine, &sum, 1, moecclInt32, moecclSum, comm, NULL) != moecclSuccess)
    return fail("moecclAllReduce", comm);
  if (sum != ranks * (ranks + 1) / 2) {
    fprintf(stderr, "the sum is %d\n", sum);
    return 1;
  }
  if (moecclCommDestroy(comm) != moecclSuccess) return fail("moecclCommDestroy", NULL);
  puts("right");
  return 0;
}

/* Of this process alone, and what it shares in memory with its node. */
static long kibOfMemory(void) {
  char line[256];
  long kib = 0, part;
  FILE* const file = fopen("/proc/self/status", "r");
  if (file == NULL) return -1;
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "RssAnon: %ld", &part) == 1 || sscanf(line, "RssShmem: %ld", &part) == 1)
      kib += part;
  fclose(file);
  return kib;
}

static int flood(moecclComm_t comm, int rank, size_t bytes) {
  static char data[1 << 20];
  if (rank == 1)
    for (int tag = 0;; ++tag)
      if (moecclSend(data, bytes, moecclInt8, 0, tag, comm, NULL) != moecclSuccess)
        return fail("moecclSend", comm);
  for (int looks = 0; !inputHasEnded(1); ++looks) {
    moecclResult_t state; /* asking for it lets messages in */
    if (moecclCommGetAsyncError(comm, &state) != moecclSuccess || state != moecclSuccess)
      return fail("moecclCommGetAsyncError", comm);
    if (looks % 400 != 0) continue;
    printf("%ld\n", kibOfMemory());
    fflush(stdout);
  }
  return 0;
}

int main(int argc, char** argv) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  moecclComm_t comm;
  int rank, ranks;
  config.progressThread = 1;
  if (moecclCommInitEnv(&comm, &config) != moecclSuccess) return fail("join", NULL);
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);
  if (moecclBarrier(comm, NULL) != moecclSuccess) return fail("moecclBarrier", comm);
  if (argc == 3 && strcmp(argv[1], "flood") == 0)
    return flood(comm, rank, (size_t)strtoul(argv[2], NULL, 10));
  return sleepAndSum(comm, rank, ranks);
}
