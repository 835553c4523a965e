/* How much of a layer's compute its exchanges hide: schedule S1 in chunks on hosts with a progress
 * thread, beside the same layer's exchanges and compute alone.
 *
 *   moeccl-lab run --no-prefix -- overlapped_layer HIDDEN CHUNKS TURNS
 *
 * B L = 2048 tokens of each rank, M = 256, an expert per rank, k = 1, f = 1, forward. All take
 * turns; a time is that of the slowest rank. */
#define _POSIX_C_SOURCE 200809L

#include <moeccl/moe.h>
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { kTokens = 2048, kEmbedding = 256, kTiny = 8, kMostTurns = 101 };

struct Layer {
  const char* name;
  moecclComm_t comm;
  int64_t hidden, chunks;
  moecclMoeLayer_t layer;
  moecclStream_t stream;
  double ms[kMostTurns];
};

static float input[kTokens * kEmbedding], output[kTokens * kEmbedding];

static void check(moecclResult_t result, const char* what) {
  if (result == moecclSuccess) return;
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(NULL));
  exit(1);
}

static float* randomNumbers(float* numbers, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    numbers[i] = (float)(seed >> 8) / (float)(1u << 23) - 1.0f;
  }
  return numbers;
}

static void make(struct Layer* it) {
  moecclGrid_t grid;
  moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  moecclCommCount(it->comm, &shape.nEp);
  check(moecclGridCreate(it->comm, shape, &grid), "grid");
  config.tokens = kTokens;
  config.embedding = kEmbedding;
  config.hidden = it->hidden;
  config.experts = shape.nEp;
  config.topK = 1;
  config.capacityFactor = 1;
  config.capacityGroups = config.chunks = it->chunks;
  config.schedule = moecclScheduleS1;
  check(moecclMoeLayerCreate(grid, &config, &it->layer), "layer");
  moecclMoeLayerGetShapes(it->layer, &shapes);
  const size_t size = (size_t)(shapes.localExperts * shapes.localHidden) * kEmbedding;
  const size_t gate = (size_t)config.experts * kEmbedding;
  weights.w1 = randomNumbers(malloc(size * sizeof(float)), size, 1);
  weights.w2 = weights.w1;
  weights.gate = randomNumbers(malloc(gate * sizeof(float)), gate, 2);
  check(moecclMoeLayerSetWeights(it->layer, &weights), "weights");
  check(moecclStreamCreate(it->comm, &it->stream), "stream");
}

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static double timed(struct Layer* it, moecclComm_t all) {
  check(moecclBarrier(all, NULL), "barrier");
  double own = milliseconds();
  check(moecclMoeForward(it->layer, input, output, it->stream), "forward");
  check(moecclStreamSynchronize(it->stream), "forward");
  own = milliseconds() - own;
  check(moecclAllReduce(&own, &own, 1, moecclFloat64, moecclMax, all, NULL), "all-reduce");
  return own;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  moecclComm_t all, own;
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  const int64_t hidden = argc == 4 ? atoll(argv[1]) : 0, chunks = argc == 4 ? atoll(argv[2]) : 0;
  const int turns = argc == 4 ? atoi(argv[3]) : 0;
  int rank;
  if (hidden < 1 || chunks < 1 || turns < 1 || turns > kMostTurns) {
    fprintf(stderr, "usage: overlapped_layer HIDDEN CHUNKS TURNS; TURNS up to %d\n", kMostTurns);
    return 2;
  }
  config.progressThread = 1;
  check(moecclCommInitEnv(&all, &config), "join");
  moecclCommUserRank(all, &rank);
  check(moecclCommSplit(all, rank, 0, &own, NULL), "split");
  /* Alone a rank computes for as many tokens as its expert gets in the mean. */
  struct Layer layers[] = {{.name = "exchanges alone", .comm = all, .hidden = kTiny, .chunks = 1},
                           {.name = "compute alone", .comm = own, .hidden = hidden, .chunks = 1},
                           {.name = "whole", .comm = all, .hidden = hidden, .chunks = 1},
                           {.name = "in chunks", .comm = all, .hidden = hidden, .chunks = chunks}};
  enum { kLayers = sizeof layers / sizeof *layers };
  randomNumbers(input, kTokens * kEmbedding, 3 + (unsigned)rank);
  for (int i = 0; i < kLayers; ++i) make(&layers[i]);
  for (int turn = -1; turn < turns; ++turn) /* the first is not counted */
    for (int i = 0; i < kLayers; ++i) {
      struct Layer* it = &layers[(i + turn + kLayers) % kLayers];
      const double ms = timed(it, all);
      if (turn >= 0) it->ms[turn] = ms;
    }
  double longer = 0;
  for (int i = 0; i < kLayers && rank == 0; ++i) {
    struct Layer* it = &layers[i];
    qsort(it->ms, (size_t)turns, sizeof *it->ms, ascending);
    const double median = it->ms[turns / 2];
    if (i < 2 && median > longer) longer = median;
    printf("%-16s %8.1f ms (%.1f to %.1f)", it->name, median, it->ms[turns / 4],
           it->ms[3 * turns / 4]);
    if (i >= 2) printf(", %.2f of the longer of the first two", median / longer);
    printf("\n");
  }
  return 0;
}
