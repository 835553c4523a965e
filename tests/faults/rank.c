/* One rank of a job that something happens to: runs collectives, whose results it knows, until one fails or the time is
 * over, and writes what it saw to OUT/RANK.json.
 *
 *   rank OUT SEED SECONDS SHRINKS [VICTIM MILLISECONDS]
 *
 * SEED       chooses the collectives, their sizes, algorithms, and whether they go through a stream
 * SHRINKS    1: after a failure the survivors shrink, and run collectives again
 * VICTIM     the rank that kills itself that many milliseconds after all have joined
 *
 * Times are CLOCK_MONOTONIC's, in nanoseconds, which all nodes of a lab share. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "../../examples/common/launch.h"

enum { kMost = 64 * 1024, kLastRounds = 20, kTimed = 1000, kMostRanks = 256 };

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u ^ (c + 1) * 3266489917u;
  h ^= h >> 15;
  h *= 2246822519u;
  return h ^ h >> 13;
}

struct Death {
  const char* out;
  long milliseconds;
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
  const struct timespec pause = {death->milliseconds / 1000, death->milliseconds % 1000 * 1000000};
  nanosleep(&pause, NULL);
  stamp(death->out, "killed");
  raise(SIGKILL);
  return NULL;
}

/* What rank `from` sends to rank `to` (-1: to all) at place i of a round. */
static int32_t value(uint32_t seed, int from, int to, size_t i) {
  return (int32_t)(mix(seed + (uint32_t)from * 977u, (uint32_t)to + 7u, (uint32_t)i) % 100000u);
}

struct World {
  moecclComm_t comm;
  moecclStream_t stream;
  int rank, ranks;
  int32_t *in, *out;
};

enum Kind {
  kAllToAll,
  kAllToAllv,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kAllReduce
};

/* What a rank has for another in an all-to-all-v: 0 to `most` numbers. */
static size_t share(uint32_t seed, int from, int to, size_t most) {
  return mix(seed, (uint32_t)from + 100u, (uint32_t)to) % (most + 1);
}

static moecclResult_t allToAllv(struct World* w, uint32_t seed, size_t most) {
  size_t counts[4][kMostRanks], sent = 0, received = 0, i;
  int peer;
  for (peer = 0; peer < w->ranks; ++peer) {
    counts[0][peer] = share(seed, w->rank, peer, most);
    counts[1][peer] = sent;
    counts[2][peer] = share(seed, peer, w->rank, most);
    counts[3][peer] = received;
    for (i = 0; i < counts[0][peer]; ++i) w->in[sent + i] = value(seed, w->rank, peer, i);
    sent += counts[0][peer];
    received += counts[2][peer];
  }
  return moecclAllToAllv(w->in, counts[0], counts[1], w->out, counts[2], counts[3], moecclInt32,
                         w->comm, w->stream);
}

static moecclResult_t call(struct World* w, uint32_t seed, enum Kind kind, size_t count, int root) {
  const size_t block = count / (size_t)w->ranks;
  size_t i;
  int peer;
  switch (kind) {
    case kAllToAll:
      for (peer = 0; peer < w->ranks; ++peer)
        for (i = 0; i < block; ++i) w->in[(size_t)peer * block + i] = value(seed, w->rank, peer, i);
      return moecclAllToAll(w->in, w->out, block, moecclInt32, w->comm, w->stream);
    case kAllToAllv:
      return allToAllv(w, seed, block);
    case kScatter:
      for (peer = 0; peer < w->ranks; ++peer)
        for (i = 0; i < block; ++i) w->in[(size_t)peer * block + i] = value(seed, w->rank, peer, i);
      return moecclScatter(w->in, w->out, block, moecclInt32, root, w->comm, w->stream);
    case kBarrier:
      return moecclBarrier(w->comm, w->stream);
    default:
      break;
  }
  for (i = 0; i < count; ++i) w->in[i] = value(seed, w->rank, -1, i);
  switch (kind) {
    case kAllGather:
      return moecclAllGather(w->in, w->out, block, moecclInt32, w->comm, w->stream);
    case kGather:
      return moecclGather(w->in, w->out, block, moecclInt32, root, w->comm, w->stream);
    case kReduceScatter:
      return moecclReduceScatter(w->in, w->out, block, moecclInt32, moecclSum, w->comm, w->stream);
    case kBroadcast:
      return moecclBroadcast(w->in, w->out, count, moecclInt32, root, w->comm, w->stream);
    case kReduce:
      return moecclReduce(w->in, w->out, count, moecclInt32, moecclSum, root, w->comm, w->stream);
    default:
      return moecclAllReduce(w->in, w->out, count, moecclInt32, moecclSum, w->comm, w->stream);
  }
}

/* How many of `count` numbers at out + at are not what `from` sent to `to` (as in value()), from place `first` on. */
static size_t wrongFrom(const struct World* w, uint32_t seed, size_t at, size_t count, int from,
                        int to, size_t first) {
  size_t i, wrong = 0;
  for (i = 0; i < count; ++i) wrong += w->out[at + i] != value(seed, from, to, first + i);
  return wrong;
}

static size_t wrongSums(const struct World* w, uint32_t seed, size_t count, size_t first) {
  size_t i, wrong = 0;
  int peer;
  for (i = 0; i < count; ++i) {
    int32_t sum = 0;
    for (peer = 0; peer < w->ranks; ++peer) sum += value(seed, peer, -1, first + i);
    wrong += w->out[i] != sum;
  }
  return wrong;
}

static size_t check(const struct World* w, uint32_t seed, enum Kind kind, size_t count, int root) {
  const size_t block = count / (size_t)w->ranks;
  size_t wrong = 0, at = 0;
  int peer;
  switch (kind) {
    case kBarrier:
      return 0;
    case kScatter:
      return wrongFrom(w, seed, 0, block, root, w->rank, 0);
    case kBroadcast:
      return wrongFrom(w, seed, 0, count, root, -1, 0);
    case kReduceScatter:
      return wrongSums(w, seed, block, (size_t)w->rank * block);
    case kAllReduce:
      return wrongSums(w, seed, count, 0);
    case kReduce:
      return w->rank == root ? wrongSums(w, seed, count, 0) : 0;
    default:
      break;
  }
  if (kind == kGather && w->rank != root) return 0;
  for (peer = 0; peer < w->ranks; ++peer) {
    const size_t many = kind == kAllToAllv ? share(seed, peer, w->rank, block) : block;
    const int to = kind == kAllToAll || kind == kAllToAllv ? w->rank : -1;
    wrong += wrongFrom(w, seed, at, many, peer, to, 0);
    at += many;
  }
  return wrong;
}

/* One collective of the round, whose result is looked at when it is complete. Returns the wrong numbers, *result the error. */
static size_t step(struct World* w, uint32_t seed, moecclResult_t* result, int* queued) {
  /* All-reduces more often: their plans have the most steps. */
  const uint32_t drawn = mix(seed, 1, 0) % (kAllReduce + 4);
  const enum Kind kind = drawn < kAllReduce ? (enum Kind)drawn : kAllReduce;
  const size_t count = mix(seed, 3, 0) % 3 == 0 ? kMost : mix(seed, 2, 0) % 4096;
  const int root = (int)(mix(seed, 7, 0) % (uint32_t)w->ranks);
  *queued = 0;
  memset(w->out, 0xff, sizeof(int32_t) * kMost);
  *result = call(w, seed, kind, count, root);
  if (*result == moecclSuccess && w->stream != NULL) {
    *queued = 1;
    *result = moecclStreamSynchronize(w->stream);
  }
  return *result == moecclSuccess ? check(w, seed, kind, count, root) : 0;
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
  struct World w = {NULL, NULL, -1, 0, NULL, NULL};
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

  result = launchComm(&w.comm, &config);
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
  if (w.rank == 0) stamp(out, "joined");
  struct Death death = {out, argc == 7 ? strtol(argv[6], NULL, 10) : 0};
  pthread_t killer;
  if (argc == 7 && atoi(argv[5]) == w.rank && pthread_create(&killer, NULL, die, &death) != 0)
    return 1;

  size_t wrong = 0;
  uint32_t round = 0;
  int queued = 0;
  int32_t over = 0;
  static long long times[kTimed];
  /* All stop in the same round: the first byte of a reduction says that rank 0's time is over. */
  for (result = moecclSuccess; result == moecclSuccess && !over; ++round) {
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
