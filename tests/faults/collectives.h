/* Random collectives of which every rank knows the results. Needs POSIX; include it before any
 * other header. */
#ifndef MOECCL_TESTS_FAULTS_COLLECTIVES_H_
#define MOECCL_TESTS_FAULTS_COLLECTIVES_H_

#include <moeccl/moeccl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMost = 64 * 1024, kMostRanks = 256 };

static inline long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static inline uint32_t mix(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u ^ (c + 1) * 3266489917u;
  h ^= h >> 15;
  h *= 2246822519u;
  return h ^ h >> 13;
}

/* What rank `from` sends to rank `to` (-1: to all) at place i of a round. */
static inline int32_t value(uint32_t seed, int from, int to, size_t i) {
  return (int32_t)(mix(seed + (uint32_t)from * 977u, (uint32_t)to + 7u, (uint32_t)i) % 100000u);
}

struct World {
  moecclComm_t comm;
  moecclStream_t stream;
  int rank, ranks;
  int32_t *in, *out;
  uint32_t largeIn; /* one in so many collectives has kMost numbers */
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
static inline size_t share(uint32_t seed, int from, int to, size_t most) {
  return mix(seed, (uint32_t)from + 100u, (uint32_t)to) % (most + 1);
}

static inline moecclResult_t allToAllv(struct World* w, uint32_t seed, size_t most) {
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

static inline moecclResult_t call(struct World* w, uint32_t seed, enum Kind kind, size_t count,
                                  int root) {
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

/* How many of `count` numbers at out + at are not what `from` sent to `to` (as in value()), from
 * place `first` on. */
static inline size_t wrongFrom(const struct World* w, uint32_t seed, size_t at, size_t count,
                               int from, int to, size_t first) {
  size_t i, wrong = 0;
  for (i = 0; i < count; ++i) wrong += w->out[at + i] != value(seed, from, to, first + i);
  return wrong;
}

static inline size_t wrongSums(const struct World* w, uint32_t seed, size_t count, size_t first) {
  size_t i, wrong = 0;
  int peer;
  for (i = 0; i < count; ++i) {
    int32_t sum = 0;
    for (peer = 0; peer < w->ranks; ++peer) sum += value(seed, peer, -1, first + i);
    wrong += w->out[i] != sum;
  }
  return wrong;
}

static inline size_t check(const struct World* w, uint32_t seed, enum Kind kind, size_t count,
                           int root) {
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

/* One collective of the round, whose result is looked at when it is complete. Returns the wrong
 * numbers, *result the error. */
static inline size_t step(struct World* w, uint32_t seed, moecclResult_t* result, int* queued) {
  /* All-reduces more often: their plans have the most steps. */
  const uint32_t drawn = mix(seed, 1, 0) % (kAllReduce + 4);
  const enum Kind kind = drawn < kAllReduce ? (enum Kind)drawn : kAllReduce;
  const size_t count = mix(seed, 3, 0) % w->largeIn == 0 ? kMost : mix(seed, 2, 0) % 4096;
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

#endif /* MOECCL_TESTS_FAULTS_COLLECTIVES_H_ */
