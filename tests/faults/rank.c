/* One rank of a job that something happens to: runs collectives, whose results it knows, until one
 * fails or the time is over, and writes what it saw to OUT/RANK.json.
 *
 *   rank OUT SEED SECONDS SHRINKS [VICTIM MILLISECONDS]
 *
 * SEED       chooses the collectives, their sizes, algorithms, and whether they go through a stream
 * SHRINKS    1: after a failure the survivors shrink, and run collectives again
 * VICTIM     the rank that kills itself that many milliseconds after all have joined; where the
 * number is negative, so many microseconds after its start, or after rank 0 has written the id
 *
 * Times are CLOCK_MONOTONIC's, in nanoseconds, which all nodes of a lab share. */
#define _POSIX_C_SOURCE 200809L

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collectives.h"

enum { kLastRounds = 20, kTimed = 1000 };

struct Death {
  const char* out;
  const char* awaited; /* a file; NULL: none */
  long microseconds;
};

static void stamp(const char* out, const char* name) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", out, name);
  FILE* file = fopen(path, "w");
  if (file == NULL) return;
  fprintf(file, "%lld\n", now());
  fclose(file);
}

static void* die(void* argument) {
  const struct Death* death = argument;
  const struct timespec pause = {death->microseconds / 1000000,
                                 death->microseconds % 1000000 * 1000};
  const struct timespec look = {0, 100000};
  while (death->awaited != NULL && access(death->awaited, F_OK) != 0) nanosleep(&look, NULL);
  nanosleep(&pause, NULL);
  stamp(death->out, "killed");
  raise(SIGKILL);
  return NULL;
}

static int longer(const void* a, const void* b) {
  const long long x = *(const long long*)a, y = *(const long long*)b;
  return (x > y) - (x < y);
}

/* 0 of nothing. Sorts them. */
static long long median(long long* times, size_t count) {
  qsort(times, count, sizeof *times, longer);
  return count == 0 ? 0 : times[count / 2];
}

static void quote(FILE* file, const char* text) {
  fputc('"', file);
  for (; *text != '\0'; ++text) {
    if (*text == '"' || *text == '\\') fputc('\\', file);
    fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
  }
  fputc('"', file);
}

int main(int argc, char** argv) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  struct World w = {NULL, NULL, -1, 0, NULL, NULL, 3};
  moecclResult_t result;
  char path[PATH_MAX];
  if (argc != 5 && argc != 7) return 2;
  const char* out = argv[1];
  const uint32_t seed = (uint32_t)strtoul(argv[2], NULL, 10);
  const double seconds = strtod(argv[3], NULL);
  const int shrinks = argv[4][0] == '1';
  static const char* const kHierarchical =
      "allreduce=hierarchical;allgather=hierarchical;alltoall=hierarchical";
  const char* algorithms[] = {"", kHierarchical, kHierarchical, "allreduce=ring;alltoall=pairwise"};
  config.algorithms = algorithms[mix(seed, 4, 0) % 4];
  config.progressThread = mix(seed, 5, 0) % 4 == 0;
  const long long began = now();
  const char* me = getenv("MOECCL_RANK");
  snprintf(path, sizeof path, "%s/%s.json", out, me != NULL ? me : "0");

  const long delay = argc == 7 ? strtol(argv[6], NULL, 10) : 0;
  struct Death death = {out, NULL, delay < 0 ? -delay : delay * 1000};
  pthread_t killer;
  const int dies = argc == 7 && me != NULL && atoi(argv[5]) == atoi(me);
  if (dies && delay < 0) {
    if (atoi(me) == 0) death.awaited = getenv("MOECCL_ID_FILE");
    if (pthread_create(&killer, NULL, die, &death) != 0) return 1;
  }
  result = moecclCommInitEnv(&w.comm, &config);
  const long long joined = now();
  if (result != moecclSuccess) {
    FILE* file = fopen(path, "w");
    if (file == NULL) return 1;
    fprintf(file,
            "{\"rank\": %s, \"joined\": null, \"returned\": %lld, \"result\": \"%s\", \"text\": ",
            me, joined, moecclGetErrorString(result));
    quote(file, moecclGetLastError(NULL));
    fprintf(file, "}\n");
    fclose(file);
    return 0;
  }
  moecclCommUserRank(w.comm, &w.rank);
  moecclCommCount(w.comm, &w.ranks);
  w.in = malloc(sizeof(int32_t) * kMost);
  w.out = malloc(sizeof(int32_t) * kMost);
  const int onStream = mix(seed, 6, 0) % 2 == 0;
  if (w.in == NULL || w.out == NULL ||
      (onStream && moecclStreamCreate(w.comm, &w.stream) != moecclSuccess))
    return 1;
  /* Once it is complete somewhere, all have joined. */
  result = moecclBarrier(w.comm, NULL);
  if (w.rank == 0) stamp(out, "joined");
  if (dies && delay >= 0 && pthread_create(&killer, NULL, die, &death) != 0) return 1;

  size_t wrong = 0;
  uint32_t round = 0;
  int queued = 0;
  int32_t over = 0;
  static long long times[kTimed];
  /* All stop in the same round: the first byte of a reduction says that rank 0's time is over. */
  for (; result == moecclSuccess && !over; ++round) {
    const long long called = now();
    wrong += step(&w, mix(seed, 10, round), &result, &queued);
    if (result != moecclSuccess) break;
    if (round < kTimed) times[round] = now() - called;
    if (round % 64 != 63) continue;
    int32_t mine = w.rank == 0 && (double)(now() - joined) > seconds * 1e9;
    queued = 0;
    result = moecclAllReduce(&mine, &over, 1, moecclInt32, moecclMax, w.comm, NULL);
  }
  const long long returned = now();
  const char* error = result == moecclSuccess ? "" : moecclGetLastError(queued ? NULL : w.comm);
  char* const text = strdup(error);

  int failed[1024], nFailed = 1024, i;
  if (moecclCommGetFailedRanks(w.comm, failed, &nFailed) != moecclSuccess) nFailed = 0;

  /* Those that are left go on. */
  const char* after = "";
  char* afterText = strdup("");
  int left = 0;
  long long shrunk = 0;
  if (result != moecclSuccess && shrinks) {
    moecclComm_t smaller = NULL;
    moecclResult_t then = moecclCommShrink(w.comm, NULL, 0, &smaller, NULL);
    if (then == moecclSuccess) {
      if (w.stream != NULL) moecclStreamDestroy(w.stream);
      moecclCommAbort(w.comm);
      w.comm = smaller;
      w.stream = NULL;
      moecclCommUserRank(w.comm, &w.rank);
      moecclCommCount(w.comm, &left);
      w.ranks = left;
      shrunk = now();
      for (i = 0; i < kLastRounds && then == moecclSuccess; ++i)
        wrong += step(&w, mix(seed, 20, (uint32_t)i), &then, &queued);
    }
    after = moecclGetErrorString(then);
    if (then != moecclSuccess) {
      free(afterText);
      afterText = strdup(moecclGetLastError(w.comm));
    }
  }
  if (w.stream != NULL) moecclStreamDestroy(w.stream);
  const long long leaving = now();
  if (result == moecclSuccess || left > 0)
    moecclCommDestroy(w.comm);
  else
    moecclCommAbort(w.comm);

  FILE* file = fopen(path, "w");
  if (file == NULL) return 1;
  fprintf(file,
          "{\"rank\": %s, \"began\": %lld, \"median\": %lld, \"joined\": %lld, \"returned\": %lld, "
          "\"left\": %lld, \"result\": "
          "\"%s\", \"wrong\": %zu, "
          "\"rounds\": %u, \"stream\": %d, \"after\": \"%s\", \"remaining\": %d, \"shrunk\": %lld, "
          "\"failed\": [",
          me != NULL ? me : "0", began, median(times, round < kTimed ? round : kTimed), joined,
          returned, now() - leaving, moecclGetErrorString(result), wrong, round, onStream, after,
          left, shrunk);
  for (i = 0; i < nFailed; ++i) fprintf(file, "%s%d", i == 0 ? "" : ", ", failed[i]);
  fprintf(file, "], \"text\": ");
  quote(file, text);
  fprintf(file, ", \"afterText\": ");
  quote(file, afterText);
  fprintf(file, "}\n");
  fclose(file);
  free(text);
  free(afterText);
  free(w.in);
  free(w.out);
  return 0;
}
