/* A small trainer that loses a rank and goes on with the others.
 *
 *   survive FOLDER [STEP]
 *
 * Experts, vectors of weights, are dealt to the ranks; each learns to be like a teacher. In every
 * step each rank sends samples to all experts, whose owners learn from them, and now and then all
 * write their experts to FOLDER. After STEP steps (50) the last rank kills itself. The others' next
 * call returns an error; they shrink, deal all experts anew, take them from the last checkpoint and
 * go on from there. */
#define _POSIX_C_SOURCE 200809L

#include <limits.h>
#include <moeccl/moeccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { kExperts = 12, kWidth = 8, kSamples = 24, kSteps = 120, kCheckpoint = 20 };

struct Trainer {
  moecclComm_t comm;
  int rank, ranks;
  int experts, samples;            /* of a rank at most */
  float weights[kExperts][kWidth]; /* those of this rank's experts are kept */
  float *out, *in;                 /* [P][experts][samples][kWidth] */
};

static float number(unsigned a, unsigned b, unsigned c, unsigned d) {
  unsigned h = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u ^ d * 668265263u;
  h = (h ^ h >> 15) * 2246822519u;
  return (float)((h ^ h >> 13) % 2001u) / 1000.0f - 1.0f;
}

/* Expert e is the k-th of rank e % P, k = e / P; samples are dealt in the same way. */
static int deal(struct Trainer* t) {
  if (moecclCommUserRank(t->comm, &t->rank) != moecclSuccess) return 1;
  if (moecclCommCount(t->comm, &t->ranks) != moecclSuccess) return 1;
  t->experts = (kExperts + t->ranks - 1) / t->ranks;
  t->samples = (kSamples + t->ranks - 1) / t->ranks;
  const size_t all = (size_t)t->ranks * (size_t)(t->experts * t->samples * kWidth);
  free(t->out);
  free(t->in);
  t->out = calloc(all, sizeof *t->out);
  t->in = calloc(all, sizeof *t->in);
  return t->out == NULL || t->in == NULL;
}

static moecclResult_t step(struct Trainer* t, int now, float* loss) {
  const int block = t->experts * t->samples * kWidth;
  float mine = 0;
  int e, s, i, peer;
  for (e = 0; e < kExperts; ++e)
    for (s = t->rank; s < kSamples; s += t->ranks) {
      float* x =
          t->out + e % t->ranks * block + (e / t->ranks * t->samples + s / t->ranks) * kWidth;
      for (i = 0; i < kWidth; ++i)
        x[i] = number((unsigned)now, (unsigned)e, (unsigned)s, (unsigned)i);
    }
  moecclResult_t result =
      moecclAllToAll(t->out, t->in, (size_t)block, moecclFloat32, t->comm, NULL);
  if (result != moecclSuccess) return result;
  for (e = t->rank; e < kExperts; e += t->ranks) {
    float gradient[kWidth] = {0};
    for (peer = 0; peer < t->ranks; ++peer)
      for (s = 0; s < t->samples; ++s) { /* where there is none it is 0 and teaches nothing */
        const float* x = t->in + peer * block + (e / t->ranks * t->samples + s) * kWidth;
        float error = 0;
        for (i = 0; i < kWidth; ++i)
          error += (t->weights[e][i] - number(0, (unsigned)e, 0, (unsigned)i)) * x[i];
        for (i = 0; i < kWidth; ++i) gradient[i] += error * x[i];
        mine += error * error;
      }
    for (i = 0; i < kWidth; ++i) t->weights[e][i] -= 0.05f * gradient[i];
  }
  return moecclAllReduce(&mine, loss, 1, moecclFloat32, moecclSum, t->comm, NULL);
}

static int checkpoint(const struct Trainer* t, const char* folder, int step) {
  char path[PATH_MAX];
  int e;
  for (e = t->rank; e < kExperts; e += t->ranks) {
    snprintf(path, sizeof path, "%s/expert%d.step%d", folder, e, step);
    FILE* file = fopen(path, "wb");
    if (file == NULL) return 1;
    const int written = fwrite(t->weights[e], sizeof t->weights[e], 1, file) == 1;
    if (fclose(file) != 0 || !written) return 1;
  }
  return 0;
}

static int restore(struct Trainer* t, const char* folder, int step) {
  char path[PATH_MAX];
  int e;
  for (e = t->rank; e < kExperts; e += t->ranks) {
    snprintf(path, sizeof path, "%s/expert%d.step%d", folder, e, step);
    FILE* file = fopen(path, "rb");
    if (file == NULL) return 1;
    const int whole = fread(t->weights[e], sizeof t->weights[e], 1, file) == 1;
    fclose(file);
    if (!whole) return 1;
  }
  return 0;
}

/* Goes on with those that live, from the last checkpoint that all of them know to be whole. */
static int survive(struct Trainer* t, const char* folder, int* saved) {
  int failed[64], nFailed = 64, i, all = 0;
  moecclComm_t smaller;
  printf("rank %d: %s\n", t->rank, moecclGetLastError(t->comm));
  /* Before the others leave the old communicator: those that have left it count as failed there. */
  if (moecclCommGetFailedRanks(t->comm, failed, &nFailed) != moecclSuccess) return 1;
  if (moecclCommShrink(t->comm, NULL, 0, &smaller, NULL) != moecclSuccess) return 1;
  moecclCommAbort(t->comm);
  t->comm = smaller;
  if (deal(t) != 0) return 1;
  if (moecclAllReduce(saved, &all, 1, moecclInt32, moecclMin, t->comm, NULL) != moecclSuccess)
    return 1;
  *saved = all;
  printf("now rank %d of %d, without", t->rank, t->ranks);
  for (i = 0; i < nFailed && i < 64; ++i) printf(" %d", failed[i]);
  printf("; goes on from step %d\n", all);
  return restore(t, folder, all);
}

int main(int argc, char** argv) {
  struct Trainer t = {NULL, 0, 0, 0, 0, {{0}}, NULL, NULL};
  const int dies = argc > 2 ? atoi(argv[2]) : 50;
  int now, saved = 0, lost = 0;
  float loss = 0;
  if (argc < 2) {
    fprintf(stderr, "usage: survive FOLDER [STEP]\n");
    return 1;
  }
  if (moecclCommInitEnv(&t.comm, NULL) != moecclSuccess) {
    fprintf(stderr, "cannot join: %s\n", moecclGetLastError(NULL));
    return 1;
  }
  if (deal(&t) != 0) return 1;
  if (checkpoint(&t, argv[1], 0) != 0) return 1;
  for (now = 0; now < kSteps;) {
    if (now == dies && lost == 0 && t.ranks > 1 && t.rank == t.ranks - 1) raise(SIGKILL);
    moecclResult_t result = step(&t, now, &loss);
    const int saves = result == moecclSuccess && (now + 1) % kCheckpoint == 0;
    if (saves) { /* whole once all have written theirs */
      int written = checkpoint(&t, argv[1], now + 1) == 0, all = 0;
      result = moecclAllReduce(&written, &all, 1, moecclInt32, moecclMin, t.comm, NULL);
      if (result == moecclSuccess && !all) return 1;
    }
    if (result == moecclRemoteError && lost++ < 3) {
      if (survive(&t, argv[1], &saved) != 0) {
        fprintf(stderr, "cannot go on: %s\n", moecclGetLastError(t.comm));
        return 1;
      }
      now = saved;
      continue;
    }
    if (result != moecclSuccess) {
      fprintf(stderr, "%s\n", moecclGetLastError(t.comm));
      return 1;
    }
    ++now;
    if (!saves) continue;
    saved = now;
    if (t.rank == 0) printf("step %d: loss %g\n", now, loss);
  }
  printf("rank %d of %d: loss %g after %d steps\n", t.rank, t.ranks, loss, now);
  free(t.out);
  free(t.in);
  if (moecclCommDestroy(t.comm) != moecclSuccess) return 1;
  return !(loss < 1e-3f);
}
