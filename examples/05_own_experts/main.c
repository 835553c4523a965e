/* A layer around the caller's own gate and experts, with two micro-batches in flight. The gate
 * sends each token to two experts by its number; expert e multiplies its rows by a number of its
 * own, s(e), each shard by its share of that. So outputs and gradients are known, and every
 * schedule must give them. */
#include <math.h>
#include <moeccl/moe.h>
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 30, kEmbedding = 8, kChoices = 2, kBatches = 2 };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(NULL));
  return 1;
}

/* What expert e multiplies its tokens by. */
static float scaleOf(int64_t expert) { return 0.5f + 0.25f * (float)expert; }

/* The experts: results = scale / shards x rows; backward the same of gradients. Returns what the
 * gradients of the scales add up to. */
static double runExperts(const moecclMoeRows_t* rows, const moecclMoeShapes_t* shapes, int shards,
                         int backward) {
  double sum = 0;
  int64_t e, i;
  for (e = 0; e < shapes->localExperts; ++e)
    for (i = rows->begins[e] * kEmbedding; i < rows->begins[e + 1] * kEmbedding; ++i) {
      const float given = ((const float*)rows->rows)[i];
      float* result = (float*)rows->results + i;
      const float scale = scaleOf(shapes->firstExpert + e) / (float)shards;
      if (backward) sum += *result * given / shards;
      *result = scale * (backward ? *result : given);
    }
  return sum;
}

static int differs(const char* what, double is, double right) {
  if (fabs(is - right) <= 1e-4 * (1 + fabs(right))) return 0;
  fprintf(stderr, "%s is %g instead of %g\n", what, is, right);
  return 1;
}

typedef struct {
  moecclMoePass_t pass;
  moecclMoeRows_t rows;
  float tokens[kTokens * kEmbedding], output[kTokens * kEmbedding];
  int32_t experts[kTokens * kChoices];
  float weights[kTokens * kChoices], weightGradients[kTokens * kChoices];
} MicroBatch;

/* The own gate. */
static void route(MicroBatch* batch, int number, int group, int64_t experts) {
  int t, i;
  for (t = 0; t < kTokens; ++t) {
    for (i = 0; i < kEmbedding; ++i)
      batch->tokens[t * kEmbedding + i] = (float)((t * 7 + i * 3 + number * 5 + group) % 11) - 5.0f;
    batch->experts[t * kChoices] = (int32_t)((t + group) % experts);
    batch->experts[t * kChoices + 1] = t % 5 == 0 ? -1 : (int32_t)((t + group + 1) % experts);
    batch->weights[t * kChoices] = 0.75f;
    batch->weights[t * kChoices + 1] = 0.25f + 0.125f * (float)number;
  }
}

/* What the experts make of a token, without weight: choice by choice. */
static float effect(const MicroBatch* batch, int token, int choice) {
  const int32_t expert = batch->experts[token * kChoices + choice];
  return expert < 0 ? 0.0f : scaleOf(expert);
}

static int check(const MicroBatch* batch, const char* schedule) {
  int t, i, c, wrong = 0;
  for (t = 0; t < kTokens; ++t) {
    float factor = 0;
    for (c = 0; c < kChoices; ++c) factor += batch->weights[t * kChoices + c] * effect(batch, t, c);
    double square = 0;
    for (i = 0; i < kEmbedding; ++i) {
      const float token = batch->tokens[t * kEmbedding + i];
      square += token * token;
      /* The gradient of the output was the token; that of the input is in `output` now. */
      wrong +=
          differs("the gradient of a token", batch->output[t * kEmbedding + i], factor * token);
    }
    for (c = 0; c < kChoices; ++c)
      wrong += differs("the gradient of a weight", batch->weightGradients[t * kChoices + c],
                       effect(batch, t, c) * square);
  }
  if (wrong > 0) fprintf(stderr, "under %s %d numbers are wrong\n", schedule, wrong);
  return wrong;
}

static int checkOutput(const MicroBatch* batch) {
  int t, i, wrong = 0;
  for (t = 0; t < kTokens; ++t)
    for (i = 0; i < kEmbedding; ++i)
      wrong += differs("an output", batch->output[t * kEmbedding + i],
                       (batch->weights[t * kChoices] * effect(batch, t, 0) +
                        batch->weights[t * kChoices + 1] * effect(batch, t, 1)) *
                           batch->tokens[t * kEmbedding + i]);
  return wrong;
}

/* Forward of both micro-batches, then backward of both; in between both are open. */
static int train(moecclMoeLayer_t layer, const moecclMoeShapes_t* shapes, moecclGridShape_t grid,
                 int rank, int64_t experts, const char* schedule, double* scaleGradients) {
  static MicroBatch batches[kBatches];
  const int shards = grid.nEsp;
  int b, wrong = 0;
  for (b = 0; b < kBatches; ++b) {
    MicroBatch* it = &batches[b];
    moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
    moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
    it->rows = rows;
    route(it, b, rank / grid.nMp, experts);
    routing.experts = it->experts;
    routing.weights = it->weights;
    if (moecclMoeBegin(layer, it->tokens, &routing, NULL, &it->pass, &it->rows) != moecclSuccess)
      return fail("begin");
    runExperts(&it->rows, shapes, shards, 0);
  }
  for (b = 0; b < kBatches; ++b)
    if (moecclMoeEnd(batches[b].pass, batches[b].output, NULL) != moecclSuccess) return fail("end");
  for (b = 0; b < kBatches; ++b) wrong += checkOutput(&batches[b]);
  *scaleGradients = 0;
  for (b = 0; b < kBatches; ++b) {
    MicroBatch* it = &batches[b];
    if (moecclMoeEndBackward(it->pass, it->tokens, NULL, &it->rows) != moecclSuccess)
      return fail("backward of the end");
    *scaleGradients += runExperts(&it->rows, shapes, shards, 1);
    if (moecclMoeBeginBackward(it->pass, it->output, it->weightGradients, NULL) != moecclSuccess)
      return fail("backward of the beginning");
    wrong += check(it, schedule);
    if (moecclMoePassDestroy(it->pass) != moecclSuccess) return fail("destroying a pass");
  }
  return wrong;
}

static int tryAll(moecclComm_t comm, moecclGridShape_t shape, int dropless) {
  moecclGrid_t grid;
  int rank, ranks, schedule, wrong = 0;
  double first = NAN;
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);
  if (moecclGridCreate(comm, shape, &grid) != moecclSuccess) return fail("grid");
  for (schedule = moecclScheduleBaseline; schedule <= moecclSchedulePpMoe; ++schedule) {
    moecclMoeLayer_t layer;
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    double gradients = 0;
    if (schedule == moecclScheduleBaseline && shape.nMp > 1) continue;
    if (schedule == moecclScheduleS2 && dropless) continue;
    if (schedule == moecclSchedulePpMoe && shape.nMp != ranks) continue;
    config.tokens = kTokens;
    config.embedding = kEmbedding;
    config.hidden = shape.nEsp; /* of the layer's own experts, which nobody runs here */
    config.experts = 2 * shape.nEp + shape.nEp;
    config.topK = kChoices;
    config.schedule = (moecclSchedule_t)schedule;
    config.chunks = 1;
    config.training = 1;
    if (dropless)
      config.dropless = 1;
    else
      config.capacityFactor = (double)config.experts; /* room for all */
    if (moecclMoeLayerCreate(grid, &config, &layer) != moecclSuccess) return fail("layer");
    moecclMoeLayerGetShapes(layer, &shapes);
    wrong += train(layer, &shapes, shape, rank, config.experts,
                   moecclScheduleName((moecclSchedule_t)schedule), &gradients);
    if (moecclAllReduce(&gradients, &gradients, 1, moecclFloat64, moecclSum, comm, NULL) !=
        moecclSuccess)
      return fail("summing gradients");
    if (isnan(first)) first = gradients;
    wrong += differs("the sum of the experts' gradients", gradients, first);
    if (rank == 0)
      printf("%s%s on %d ranks, nMp %d: gradients of the experts add up to %.3f\n",
             moecclScheduleName((moecclSchedule_t)schedule), dropless ? ", dropless" : "", ranks,
             shape.nMp, gradients);
    if (moecclMoeLayerDestroy(layer) != moecclSuccess) return fail("destroying the layer");
  }
  if (moecclGridDestroy(grid) != moecclSuccess) return fail("destroying the grid");
  return wrong;
}

int main(void) {
  moecclComm_t comm;
  int ranks, i, dropless, wrong = 0;
  if (moecclCommInitEnv(&comm, NULL) != moecclSuccess) return fail("join");
  moecclCommCount(comm, &ranks);
  for (i = 0; i < 3; ++i) {
    const int nMp = i == 0 ? 1 : i == 1 ? 2 : ranks;
    if (ranks % nMp != 0 || (i == 2 && ranks <= 2)) continue;
    for (dropless = 0; dropless <= 1; ++dropless) {
      moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
      shape.nMp = nMp;
      shape.nEsp = ranks % 2 == 0 ? 2 : 1;
      shape.nEp = ranks / shape.nEsp;
      wrong += tryAll(comm, shape, dropless);
    }
  }
  if (moecclCommDestroy(comm) != moecclSuccess) return fail("taking down");
  return wrong > 0;
}
