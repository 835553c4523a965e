/* One MoE layer learns to repeat its input: forward, backward, and a step of gradient descent, a
 * few times over. Each rank holds its experts, or shards of them, and its MP group's tokens. */
#include <moeccl/moe.h>
#include <moeccl/moeccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { kTokens = 32, kEmbedding = 16, kHidden = 32, kSteps = 5 };
static const float kRate = 0.01f;

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(NULL));
  return 1;
}

/* Numbers from -scale to scale, the same for the same seed. */
static void fillRandom(float* values, size_t count, unsigned seed, float scale) {
  size_t i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = scale * ((float)(seed >> 8) / (float)(1u << 23) - 1.0f);
  }
}

static void descend(float* weights, float* gradients, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    weights[i] -= kRate * gradients[i];
    gradients[i] = 0; /* Backward adds to what is there */
  }
}

int main(void) {
  moecclComm_t comm;
  moecclGrid_t grid;
  moecclMoeLayer_t layer;
  moecclGridShape_t shape = {1, 1, 1, moecclOrderEspEp};
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
  double loss = 0, before = 0;
  int rank, ranks, step;
  size_t i;
  if (moecclCommInitEnv(&comm, NULL) != moecclSuccess) return fail("join");
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);

  /* Pairs of ranks have the same tokens (MP), and share experts (ESP). */
  shape.nMp = shape.nEsp = ranks % 2 == 0 ? 2 : 1;
  shape.nEp = ranks / shape.nEsp;
  if (moecclGridCreate(comm, shape, &grid) != moecclSuccess) return fail("grid");
  config.tokens = kTokens;
  config.embedding = kEmbedding;
  config.hidden = kHidden;
  config.experts = 2 * shape.nEp;
  config.topK = 2;
  config.capacityFactor = 1.5;
  config.training = 1;
  if (moecclMoeLayerCreate(grid, &config, &layer) != moecclSuccess) return fail("layer");

  /* The layer says what the caller holds, and reads weights and writes gradients in the caller's
   * memory. */
  moecclMoeLayerGetShapes(layer, &shapes);
  const size_t gateSize = kEmbedding * (size_t)config.experts;
  const size_t expertSize = (size_t)(shapes.localExperts * shapes.localHidden) * kEmbedding;
  float* gate = malloc(gateSize * sizeof *gate);
  float* w1 = malloc(expertSize * sizeof *w1);
  float* w2 = malloc(expertSize * sizeof *w2);
  float* ofGate = calloc(gateSize, sizeof *ofGate);
  float* ofW1 = calloc(expertSize, sizeof *ofW1);
  float* ofW2 = calloc(expertSize, sizeof *ofW2);
  fillRandom(gate, gateSize, 1, 0.5f); /* the same on all ranks */
  fillRandom(w1, expertSize, 2 + 2 * (unsigned)rank, 0.5f);
  fillRandom(w2, expertSize, 3 + 2 * (unsigned)rank, 0.5f);
  weights.gate = gate;
  weights.w1 = w1;
  weights.w2 = w2;
  gradients.gate = ofGate;
  gradients.w1 = ofW1;
  gradients.w2 = ofW2;
  if (moecclMoeLayerSetWeights(layer, &weights) != moecclSuccess ||
      moecclMoeLayerSetGradients(layer, &gradients) != moecclSuccess)
    return fail("weights");

  float input[kTokens * kEmbedding], output[kTokens * kEmbedding];
  fillRandom(input, kTokens * kEmbedding, 1000 + (unsigned)(rank / shape.nMp), 1);
  for (step = 0; step < kSteps; ++step) {
    if (moecclMoeForward(layer, input, output, NULL) != moecclSuccess) return fail("forward");
    /* Half the squared distance from the input; its gradient is the difference. All ranks count,
     * each token nMp times. */
    double sum = 0;
    for (i = 0; i < kTokens * kEmbedding; ++i) {
      output[i] -= input[i];
      sum += 0.5 * output[i] * output[i] / shape.nMp;
    }
    if (moecclAllReduce(&sum, &sum, 1, moecclFloat64, moecclSum, comm, NULL) != moecclSuccess)
      return fail("summing the loss");
    before = loss;
    loss = sum;
    moecclMoeGetStats(layer, &stats);
    if (rank == 0)
      printf("step %d, %d ranks: loss %.3f, %lld of this group's choices dropped\n", step, ranks,
             loss, (long long)stats.droppedChoices);
    if (step > 0 && !(loss < before)) {
      fprintf(stderr, "rank %d: the loss did not fall in step %d\n", rank, step);
      return 1;
    }

    /* The input's gradient, which nobody needs here, takes the output's place. */
    if (moecclMoeBackward(layer, output, 0, output, NULL) != moecclSuccess) return fail("backward");
    /* Those of experts are sums over all tokens already; the gate's is its MP group's, on each
     * rank. */
    if (moecclAllReduce(ofGate, ofGate, gateSize, moecclFloat32, moecclSum, comm, NULL) !=
        moecclSuccess)
      return fail("summing the gate's gradient");
    for (i = 0; i < gateSize; ++i) ofGate[i] /= (float)shape.nMp;
    descend(gate, ofGate, gateSize);
    descend(w1, ofW1, expertSize);
    descend(w2, ofW2, expertSize);
  }

  free(gate);
  free(w1);
  free(w2);
  free(ofGate);
  free(ofW1);
  free(ofW2);
  if (moecclMoeLayerDestroy(layer) != moecclSuccess || moecclGridDestroy(grid) != moecclSuccess ||
      moecclCommDestroy(comm) != moecclSuccess)
    return fail("taking down");
  return 0;
}
