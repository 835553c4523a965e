/* A grid of ranks, one expert for each EP position, cut into a shard for each ESP position. Every
 * rank has a token for each expert, sends it to all of the expert's shards, and gets back the sum
 * of what they made of it. */
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { kWidth = 4 }; /* numbers of a token */

static int fail(const char* what, moecclComm_t comm) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(comm));
  return 1;
}

int main(void) {
  moecclComm_t comm, ep, esp;
  moecclGrid_t grid;
  moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
  int rank, ranks, expert, shard, other, i, wrong = 0;
  if (moecclCommInitEnv(&comm, NULL) != moecclSuccess) return fail("join", NULL);
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);

  /* Every pair of ranks shards an expert, if they come in pairs. */
  shape.nEsp = ranks % 2 == 0 ? 2 : 1;
  shape.nEp = ranks / shape.nEsp;
  if (moecclGridCreate(comm, shape, &grid) != moecclSuccess) return fail("grid", comm);
  moecclGridGetComm(grid, moecclGroupEp, &ep);
  moecclGridGetComm(grid, moecclGroupEsp, &esp);
  moecclCommUserRank(ep,
                     &expert); /* the caller's place in its EP group: which expert it holds ... */
  moecclCommUserRank(esp, &shard); /* ... and in its ESP group: which part of it */

  const size_t mine = (size_t)shape.nEp * kWidth, all = (size_t)ranks * kWidth;
  float* tokens = malloc(mine * sizeof *tokens);   /* [nEp][kWidth]: one for each expert */
  float* results = malloc(mine * sizeof *results); /* [nEp][kWidth] */
  float* given = malloc(all * sizeof *given); /* [P][kWidth]: what each rank has for this expert */
  for (i = 0; i < (int)mine; ++i) tokens[i] = (float)(1000 * rank + i);

  if (moecclDispatch(tokens, given, kWidth, 1, moecclFloat32, grid, NULL) != moecclSuccess)
    return fail("dispatch", comm);
  /* The shards of expert e multiply by e + 1, e + 2, ...: a part of the result each. */
  for (i = 0; i < (int)all; ++i) given[i] *= (float)(expert + shard + 1);
  if (moecclCombine(given, results, kWidth, 1, moecclFloat32, grid, NULL) != moecclSuccess)
    return fail("combine", comm);

  printf("rank %d holds shard %d of expert %d\n", rank, shard, expert);
  for (other = 0; other < shape.nEp; ++other) {
    const float* token = tokens + other * kWidth;
    const float* result = results + other * kWidth;
    const int factor = shape.nEsp == 2 ? 2 * other + 3 : other + 1;
    printf("expert %d: %g %g %g %g became %g %g %g %g\n", other, token[0], token[1], token[2],
           token[3], result[0], result[1], result[2], result[3]);
    for (i = 0; i < kWidth; ++i) wrong |= result[i] != (float)factor * token[i];
  }

  free(tokens);
  free(results);
  free(given);
  if (moecclGridDestroy(grid) != moecclSuccess) return fail("destroying the grid", comm);
  if (moecclCommDestroy(comm) != moecclSuccess) return fail("destroy", NULL);
  return wrong;
}
