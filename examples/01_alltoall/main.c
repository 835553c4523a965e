/* Every rank sends each rank one row of numbers, and checks what it has received. */
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 4 };

static int fail(const char* what, moecclComm_t comm) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(comm));
  return 1;
}

int main(void) {
  moecclComm_t comm;
  int rank, ranks, peer, i;
  if (moecclCommInitEnv(&comm, NULL) != moecclSuccess) return fail("join", NULL);
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);

  float* sent = malloc((size_t)ranks * kCount * sizeof *sent);
  float* received = malloc((size_t)ranks * kCount * sizeof *received);
  for (peer = 0; peer < ranks; ++peer)
    for (i = 0; i < kCount; ++i) sent[peer * kCount + i] = (float)(1000 * rank + 10 * peer + i);

  /* Row `peer` of `sent` goes to rank `peer`; row `peer` of `received` comes from it. */
  if (moecclAllToAll(sent, received, kCount, moecclFloat32, comm, NULL) != moecclSuccess)
    return fail("all-to-all", comm);

  for (peer = 0; peer < ranks; ++peer) {
    const float* row = received + peer * kCount;
    printf("from rank %d: %g %g %g %g\n", peer, row[0], row[1], row[2], row[3]);
    for (i = 0; i < kCount; ++i)
      if (row[i] != (float)(1000 * peer + 10 * rank + i)) return 1;
  }

  free(sent);
  free(received);
  return moecclCommDestroy(comm) == moecclSuccess ? 0 : fail("destroy", NULL);
}
