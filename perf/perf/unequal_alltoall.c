/* All-to-all-v's of unequal blocks: linear beside what the library chooses by a bound on sizes.
 *
 *   moeccl-lab run --no-prefix -- unequal-alltoall MATRICES BYTES TURNS
 *
 * Blocks have 16 to BYTES bytes in the mean, growing from matrix to matrix. In turn a matrix has
 * sizes between 0 and twice that, exponential ones, one rank that receives most, and three blocks
 * of four that are empty. The two take turns; a time is that of the slowest rank. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <moeccl/moeccl.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kMostTurns = 101, kKinds = 4 };
static const char* const kKindNames[kKinds] = {"uniform", "exponential", "hot", "sparse"};

/* Of all ranks. `most`: bytes of the largest block, and of the rank that sends or receives most. */
struct Matrix {
  size_t *sizes, mostBlock, mostTotal;
  double mean;
};

struct Parts {
  size_t *counts, *displs;
  char* data;
};

static moecclComm_t comm;
static int rank, ranks;
static uint64_t state = 12345;

static void check(moecclResult_t result, const char* what) {
  if (result == moecclSuccess) return;
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(comm));
  exit(1);
}

static uint32_t draw(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 11);
}

static double sizeOf(int kind, double mean, int to, int hot) {
  const uint32_t number = draw();
  switch (kind) {
    case 0:
      return 2 * mean * (number % 1000) / 1000;
    case 1:
      return -mean * log((number % 1000 + 1) / 1001.0);
    case 2:
      return to == hot ? mean * ranks / 2 : mean / 2;
    default:
      return number % 4 == 0 ? 4 * mean : 0;
  }
}

static void fill(struct Matrix* m, int kind, double mean) {
  const int hot = (int)(draw() % (uint32_t)ranks);
  int i, j;
  m->mostBlock = m->mostTotal = 0;
  m->mean = 0;
  for (i = 0; i < ranks * ranks; ++i) m->sizes[i] = (size_t)sizeOf(kind, mean, i % ranks, hot);
  for (i = 0; i < ranks; ++i) {
    size_t sent = 0, received = 0;
    for (j = 0; j < ranks; ++j) {
      const size_t size = m->sizes[i * ranks + j];
      if (size > m->mostBlock) m->mostBlock = size;
      m->mean += (double)size / ranks / ranks;
      sent += size;
      received += m->sizes[j * ranks + i];
    }
    if (sent > m->mostTotal) m->mostTotal = sent;
    if (received > m->mostTotal) m->mostTotal = received;
  }
}

/* This rank's row or column, one block behind the other. */
static void layOut(const struct Matrix* m, int column, struct Parts* parts) {
  size_t all = 0;
  int j;
  for (j = 0; j < ranks; ++j) {
    parts->counts[j] = m->sizes[column ? j * ranks + rank : rank * ranks + j];
    parts->displs[j] = all;
    all += parts->counts[j];
  }
  parts->data = calloc(all + 1, 1);
}

static void exchange(moecclComm_t on, const struct Matrix* bound, const struct Parts* s,
                     const struct Parts* r) {
  check(bound == NULL
            ? moecclAllToAllv(s->data, s->counts, s->displs, r->data, r->counts, r->displs,
                              moecclUint8, on, NULL)
            : moecclAllToAllvBounded(s->data, s->counts, s->displs, r->data, r->counts, r->displs,
                                     bound->mostBlock, bound->mostTotal, moecclUint8, on, NULL),
        "all-to-all-v");
}

/* Microseconds of a call, on the slowest rank. */
static double timeOf(moecclComm_t on, const struct Matrix* bound, const struct Parts* s,
                     const struct Parts* r, int calls) {
  struct timespec begun, ended;
  double us;
  int i;
  exchange(on, bound, s, r);
  check(moecclBarrier(comm, NULL), "barrier");
  clock_gettime(CLOCK_MONOTONIC, &begun);
  for (i = 0; i < calls; ++i) exchange(on, bound, s, r);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  us = ((double)(ended.tv_sec - begun.tv_sec) * 1e6 +
        (double)(ended.tv_nsec - begun.tv_nsec) / 1e3) /
       calls;
  check(moecclAllReduce(&us, &us, 1, moecclFloat64, moecclMax, comm, NULL), "all-reduce");
  return us;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(moecclComm_t fixed, struct Matrix* m, int kind, double mean, int turns,
                    struct Parts* s, struct Parts* r) {
  double linear[kMostTurns], bounded[kMostTurns], ratios[kMostTurns];
  int turn, calls;
  fill(m, kind, mean);
  layOut(m, 0, s);
  layOut(m, 1, r);
  calls = m->mean < 2048 ? 30 : m->mean < 16384 ? 10 : 3;
  for (turn = 0; turn < turns; ++turn) {
    if (turn % 2 == 0) linear[turn] = timeOf(fixed, NULL, s, r, calls);
    bounded[turn] = timeOf(comm, m, s, r, calls);
    if (turn % 2 == 1) linear[turn] = timeOf(fixed, NULL, s, r, calls);
    ratios[turn] = linear[turn] / bounded[turn];
  }
  qsort(linear, (size_t)turns, sizeof *linear, compare);
  qsort(bounded, (size_t)turns, sizeof *bounded, compare);
  qsort(ratios, (size_t)turns, sizeof *ratios, compare);
  if (rank == 0) {
    printf("%-12s %10.0f %10.1f %10.1f %8.3f %8.3f %8.3f\n", kKindNames[kind], m->mean,
           linear[turns / 2], bounded[turns / 2], ratios[turns / 2], ratios[turns / 4],
           ratios[3 * turns / 4]);
    fflush(stdout);
  }
  free(s->data);
  free(r->data);
}

int main(int argc, char** argv) {
  const int matrices = argc == 4 ? atoi(argv[1]) : 0, turns = argc == 4 ? atoi(argv[3]) : 0;
  const double most = argc == 4 ? atof(argv[2]) : 0;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  moecclComm_t fixed;
  moecclUniqueId id;
  struct Matrix matrix;
  struct Parts sent, received;
  int i;
  if (matrices < 2 || most < 16 || turns < 1 || turns > kMostTurns) {
    fprintf(stderr,
            "usage: unequal-alltoall MATRICES BYTES TURNS; at least 2, at least 16, 1 to %d\n",
            kMostTurns);
    return 2;
  }
  check(moecclCommInitEnv(&comm, NULL), "join");
  check(moecclCommUserRank(comm, &rank), "rank");
  check(moecclCommCount(comm, &ranks), "ranks");
  config.algorithms = "alltoallv=linear";
  if (rank == 0) check(moecclGetUniqueId(&id), "id");
  check(moecclBroadcast(&id, &id, sizeof id, moecclUint8, 0, comm, NULL), "broadcast");
  check(moecclCommInitRankConfig(&fixed, ranks, id, rank, &config), "communicator");
  matrix.sizes = malloc((size_t)ranks * (size_t)ranks * sizeof *matrix.sizes);
  for (i = 0; i < 2; ++i) {
    struct Parts* const parts = i == 0 ? &sent : &received;
    parts->counts = malloc((size_t)ranks * sizeof *parts->counts);
    parts->displs = malloc((size_t)ranks * sizeof *parts->displs);
  }
  if (rank == 0)
    printf(
        "# %d ranks; bytes of a block, us by linear and by choice, times faster: median, "
        "quartiles\n",
        ranks);
  for (i = 0; i < matrices; ++i)
    measure(fixed, &matrix, i % kKinds, 16 * pow(most / 16, (double)i / (matrices - 1)), turns,
            &sent, &received);
  check(moecclCommDestroy(fixed), "destroy");
  check(moecclCommDestroy(comm), "destroy");
  return 0;
}
