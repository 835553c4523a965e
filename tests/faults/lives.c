/* One rank of a job that is made again and again, in the same process:
 *
 *   lives OUT SEED LIVES COLLECTIVES VICTIM
 *
 * In each of LIVES a communicator is made and COLLECTIVES run. VICTIM is killed in the middle of
 * each life; it comes again in the next, as another process. The others shrink, run some more, and
 * free everything. -1: nobody is killed. OUT/RANK.json tells what each holds (descriptors, threads,
 * KiB of memory) after a tenth of the lives, but at least five, or half of the collectives of one
 * life, and at the end. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "collectives.h"

enum { kAfter = 20, kSettles = 5 };

struct Held {
  long descriptors, threads, kib;
};

static long entries(const char* path) {
  long count = 0;
  DIR* const folder = opendir(path);
  if (folder == NULL) return -1;
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

static struct Held held(void) {
  struct Held h = {entries("/proc/self/fd"), entries("/proc/self/task"), 0};
  long pages = 0;
  malloc_trim(0); /* what was freed is held no more */
  FILE* const file = fopen("/proc/self/statm", "r");
  if (file != NULL && fscanf(file, "%*d %ld", &pages) == 1)
    h.kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
  if (file != NULL) fclose(file);
  return h;
}

static void* die(void* milliseconds) {
  const long left = *(const long*)milliseconds;
  const struct timespec pause = {left / 1000, left % 1000 * 1000000};
  nanosleep(&pause, NULL);
  raise(SIGKILL);
  return NULL;
}

static void fail(const char* what, int life, const char* text) {
  fprintf(stderr, "life %d: %s: %s\n", life, what, text);
  exit(1);
}

static size_t steps(struct World* w, uint32_t seed, long count, moecclResult_t* result) {
  size_t wrong = 0;
  long i;
  int queued;
  for (i = 0; i < count && *result == moecclSuccess; ++i)
    wrong += step(w, mix(seed, 30, (uint32_t)i), result, &queued);
  return wrong;
}

static moecclComm_t join(struct World* w, int life) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.algorithms = life % 2 == 0 ? "" : "allreduce=hierarchical;alltoall=hierarchical";
  moecclComm_t comm = NULL;
  char path[PATH_MAX];
  static char base[PATH_MAX] = "";
  if (base[0] == '\0') snprintf(base, sizeof base, "%s", getenv("MOECCL_ID_FILE"));
  snprintf(path, sizeof path, "%.*s.%d", PATH_MAX - 20, base, life);
  setenv("MOECCL_ID_FILE", path, 1);
  if (moecclCommInitEnv(&comm, &config) != moecclSuccess)
    fail("cannot join", life, moecclGetLastError(NULL));
  w->comm = comm;
  moecclCommUserRank(comm, &w->rank);
  moecclCommCount(comm, &w->ranks);
  w->stream = NULL;
  /* Once it is complete somewhere, all have joined. Where it fails, so does what comes next. */
  moecclBarrier(comm, NULL);
  if (life % 3 == 0 && moecclStreamCreate(comm, &w->stream) != moecclSuccess)
    fail("no stream", life, moecclGetLastError(comm));
  return comm;
}

/* The victim's: each in a process of its own. */
static void dieInEach(struct World* w, uint32_t seed, int lives) {
  int life, status;
  for (life = 0; life < lives; ++life) {
    const pid_t child = fork();
    if (child == 0) {
      moecclResult_t result = moecclSuccess;
      long milliseconds = mix(seed, 40, (uint32_t)life) % 100;
      pthread_t killer;
      join(w, life);
      if (pthread_create(&killer, NULL, die, &milliseconds) != 0) fail("no thread", life, "");
      steps(w, mix(seed, 50, (uint32_t)life), 1L << 30, &result);
      fail("the victim fails first", life, moecclGetLastError(w->comm));
    }
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) fail("did not die", life, "");
  }
}

static size_t outlive(struct World* w, uint32_t seed, int life, int victim) {
  moecclResult_t result = moecclSuccess;
  int failed[8], nFailed = 8;
  moecclComm_t smaller = NULL;
  moecclComm_t const comm = join(w, life);
  size_t wrong = steps(w, mix(seed, 50, (uint32_t)life), 1L << 30, &result);
  if (result != moecclRemoteError) fail("another error", life, moecclGetErrorString(result));
  moecclCommGetFailedRanks(comm, failed, &nFailed);
  if (nFailed != 1 || failed[0] != victim)
    fail("others have failed", life, moecclGetLastError(comm));
  if (w->stream != NULL) moecclStreamDestroy(w->stream);
  w->stream = NULL;
  if (moecclCommShrink(comm, NULL, 0, &smaller, NULL) != moecclSuccess)
    fail("cannot shrink", life, moecclGetLastError(comm));
  moecclCommAbort(comm);
  w->comm = smaller;
  moecclCommUserRank(smaller, &w->rank);
  moecclCommCount(smaller, &w->ranks);
  result = moecclSuccess;
  wrong += steps(w, mix(seed, 60, (uint32_t)life), kAfter, &result);
  if (result != moecclSuccess) fail("cannot go on", life, moecclGetLastError(smaller));
  if (moecclCommDestroy(smaller) != moecclSuccess)
    fail("cannot destroy", life, moecclGetLastError(NULL));
  return wrong;
}

int main(int argc, char** argv) {
  struct World w = {NULL, NULL, -1, 0, NULL, NULL, 3};
  struct Held early = {0, 0, 0}, late;
  size_t wrong = 0;
  char path[PATH_MAX];
  if (argc != 6) return 2;
  const uint32_t seed = (uint32_t)strtoul(argv[2], NULL, 10);
  const int lives = atoi(argv[3]), victim = atoi(argv[5]);
  const long collectives = atol(argv[4]);
  const char* const me = getenv("MOECCL_RANK");
  if (me == NULL) return 2;
  const int settled = lives / 10 > kSettles ? lives / 10 : kSettles;
  int life;
  /* Of one arena: which of several a thread takes is chance, and each keeps what it once had. */
  mallopt(M_ARENA_MAX, 1);
  w.in = malloc(sizeof(int32_t) * kMost);
  w.out = malloc(sizeof(int32_t) * kMost);
  if (w.in == NULL || w.out == NULL) return 1;
  if (victim < 0) w.largeIn = 64; /* whose numbers cost most of the time */
  if (victim == atoi(me)) {
    dieInEach(&w, seed, lives);
    return 0;
  }
  for (life = 0; life < lives; ++life) {
    if (victim >= 0) {
      wrong += outlive(&w, seed, life, victim);
    } else {
      moecclResult_t result = moecclSuccess;
      moecclComm_t const comm = join(&w, life);
      int part;
      for (part = 0; part < 10 && result == moecclSuccess; ++part) {
        wrong += steps(&w, mix(seed, 70, (uint32_t)(life * 10 + part)), collectives / 10, &result);
        if (lives == 1 && part == 4) early = held(); /* memory has settled */
        if (w.rank == 0) fprintf(stderr, "%ld collectives\n", collectives / 10 * (part + 1));
      }
      if (result != moecclSuccess) fail("failed", life, moecclGetLastError(comm));
      if (lives == 1) late = held();
      moecclBarrier(comm, NULL); /* nobody ends before all have looked */
      if (w.stream != NULL) moecclStreamDestroy(w.stream);
      if (moecclCommDestroy(comm) != moecclSuccess)
        fail("cannot destroy", life, moecclGetLastError(NULL));
    }
    if (lives > 1 && life == settled) early = held();
  }
  if (lives > 1) late = held();
  snprintf(path, sizeof path, "%s/%s.json", argv[1], me);
  FILE* const file = fopen(path, "w");
  if (file == NULL) return 1;
  fprintf(file,
          "{\"rank\": %s, \"wrong\": %zu, \"early\": [%ld, %ld, %ld], \"late\": [%ld, %ld, %ld]}\n",
          me, wrong, early.descriptors, early.threads, early.kib, late.descriptors, late.threads,
          late.kib);
  fclose(file);
  return 0;
}
