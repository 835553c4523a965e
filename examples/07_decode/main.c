/* Generates text with a small Mixture-of-Experts model whose experts are spread over all ranks. Its
 * weights are random, and so is the text. Each rank has sequences of its own, and brings one token
 * of each to every layer: too few for anything but latency to count. The text is generated twice,
 * by a route that exchanges counts first and sends a row per choice, and by one in latency mode;
 * both must write the same.
 *
 *   decode [LETTERS]      of each sequence; 64 unless told */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <moeccl/moeccl.h>
#include <moeccl/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  kLetters = 27,
  kHidden = 64,
  kInner = 128,
  kLayers = 2,
  kExperts = 16,
  kChoices = 4,
  kSequences = 3, /* of a rank at most */
  kMostLetters = 1000
};

static moecclComm_t comm;

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, moecclGetLastError(comm));
  return 1;
}

/* -1 to 1; the same on all ranks. */
static float randomWeight(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

static void fillRandom(float* weights, size_t count, uint32_t seed, float scale) {
  uint32_t state = seed * 2654435761u + 12345u;
  size_t i;
  for (i = 0; i < count; ++i) weights[i] = scale * randomWeight(&state);
}

/* output [rows] = matrix [rows][columns] x input, perhaps without what is negative. */
static void multiply(const float* matrix, const float* input, int rows, int columns, int rectify,
                     float* output) {
  int row, column;
  for (row = 0; row < rows; ++row) {
    float sum = 0;
    for (column = 0; column < columns; ++column)
      sum += matrix[row * columns + column] * input[column];
    output[row] = rectify && sum < 0 ? 0 : sum;
  }
}

typedef struct {
  float up[kInner * kHidden], down[kHidden * kInner];
} Expert;

typedef struct {
  float letters[kLetters * kHidden];
  float gates[kLayers][kExperts * kHidden];
  Expert* experts; /* [kLayers][localExperts] */
  int firstExpert, localExperts;
} Model;

static int makeModel(Model* model) {
  int layer, e;
  model->experts = malloc(sizeof(Expert) * (size_t)(kLayers * model->localExperts + 1));
  if (model->experts == NULL) return fail("malloc");
  fillRandom(model->letters, kLetters * kHidden, 1, 1.0f);
  for (layer = 0; layer < kLayers; ++layer) {
    fillRandom(model->gates[layer], kExperts * kHidden, 2 + (uint32_t)layer, 0.25f);
    for (e = 0; e < model->localExperts; ++e) {
      Expert* expert = &model->experts[layer * model->localExperts + e];
      const uint32_t seed = 100u + (uint32_t)(layer * kExperts + model->firstExpert + e) * 2u;
      fillRandom(expert->up, kInner * kHidden, seed, 0.2f);
      fillRandom(expert->down, kHidden * kInner, seed + 1, 0.2f);
    }
  }
  return 0;
}

typedef struct {
  moecclRoute_t route;
  const char* algorithm; /* of the last pass */
  float *rows, *results; /* room for all that can come */
  int64_t room;
} Team;

static int makeTeam(moecclGrid_t grid, int ranks, int latency, Team* team) {
  moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  config.experts = kExperts;
  config.topK = kChoices;
  config.hidden = kHidden;
  config.datatype = moecclFloat32;
  config.maxTokens = kSequences;
  config.mode = latency ? "latency" : "throughput";
  config.algorithm = latency ? NULL : "flat";
  if (moecclRouteCreate(grid, &config, &team->route) != moecclSuccess ||
      moecclRouteGetInfo(team->route, &info) != moecclSuccess)
    return fail("a route");
  team->room = latency ? info.maxRows : (int64_t)ranks * kSequences * kChoices;
  team->rows = malloc(sizeof(float) * kHidden * (size_t)(team->room + 1));
  team->results = malloc(sizeof(float) * kHidden * (size_t)(team->room + 1));
  return team->rows == NULL || team->results == NULL ? fail("malloc") : 0;
}

static void freeTeam(Team* team) {
  moecclRouteDestroy(team->route);
  free(team->rows);
  free(team->results);
}

/* The kChoices experts with the largest logits, and their softmax. */
static void choose(const float* gate, const float* token, int32_t* experts, float* weights) {
  float logits[kExperts], sum = 0;
  int i, e;
  multiply(gate, token, kExperts, kHidden, 0, logits);
  for (i = 0; i < kChoices; ++i) {
    int best = 0;
    for (e = 1; e < kExperts; ++e)
      if (logits[e] > logits[best]) best = e;
    experts[i] = best;
    weights[i] = expf(logits[best]);
    sum += weights[i];
    logits[best] = -INFINITY;
  }
  for (i = 0; i < kChoices; ++i) weights[i] /= sum;
}

static void normalise(const float* token, float* normal) {
  float square = 1e-6f;
  int i;
  for (i = 0; i < kHidden; ++i) square += token[i] * token[i];
  for (i = 0; i < kHidden; ++i) normal[i] = token[i] * sqrtf(kHidden / square);
}

/* tokens += what the experts make of them. */
static int runLayer(const Model* model, Team* team, int layer, int count, float* tokens) {
  float normal[kSequences * kHidden], output[kSequences * kHidden], weights[kSequences * kChoices];
  float inner[kInner];
  int32_t experts[kSequences * kChoices];
  moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
  moecclRows_t come = MOECCL_ROWS_INITIALIZER;
  moecclRoutePass_t pass = NULL;
  int64_t row;
  int t, e, i;
  for (t = 0; t < count; ++t) {
    normalise(tokens + t * kHidden, normal + t * kHidden);
    choose(model->gates[layer], normal + t * kHidden, experts + t * kChoices,
           weights + t * kChoices);
  }
  routing.tokens = count;
  routing.experts = experts;
  routing.weights = weights;
  if (moecclRouteBegin(team->route, &routing, NULL, &pass) != moecclSuccess ||
      moecclPassDispatch(pass, normal, team->rows, NULL) != moecclSuccess ||
      moecclPassGetRows(pass, &come) != moecclSuccess)
    return fail("dispatch");
  for (e = 0; e < model->localExperts; ++e) {
    const Expert* expert = &model->experts[layer * model->localExperts + e];
    for (row = come.begins[e]; row < come.begins[e + 1]; ++row) {
      multiply(expert->up, team->rows + row * kHidden, kInner, kHidden, 1, inner);
      multiply(expert->down, inner, kHidden, kInner, 0, team->results + row * kHidden);
    }
  }
  if (moecclPassCombine(pass, team->results, output, NULL) != moecclSuccess ||
      moecclPassEnd(pass) != moecclSuccess)
    return fail("combine");
  team->algorithm = come.algorithm;
  for (i = 0; i < count * kHidden; ++i) tokens[i] += output[i];
  return 0;
}

/* One of the letters, the likelier the larger its logit. */
static int draw(const float* letters, const float* token, uint32_t* state) {
  float chances[kLetters], normal[kHidden], sum = 0, at;
  int i;
  normalise(token, normal);
  multiply(letters, normal, kLetters, kHidden, 0, chances);
  for (i = 0; i < kLetters; ++i) sum += chances[i] = expf(chances[i] / 8);
  at = (randomWeight(state) + 1) / 2 * sum;
  for (i = 0; i < kLetters - 1 && at >= chances[i]; ++i) at -= chances[i];
  return i;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* text [count][letters + 1]. A sequence remembers what it has written in a state that fades. */
static int generate(const Model* model, Team* team, int rank, int count, int letters, char* text) {
  float states[kSequences * kHidden] = {0}, tokens[kSequences * kHidden];
  uint32_t random[kSequences];
  int last[kSequences] = {0}, step, t, i, layer;
  for (t = 0; t < count; ++t) random[t] = 7u * (uint32_t)(rank * kSequences + t) + 1u;
  for (step = 0; step < letters; ++step) {
    for (t = 0; t < count; ++t)
      for (i = 0; i < kHidden; ++i) {
        float* state = &states[t * kHidden + i];
        *state = 0.8f * *state + model->letters[last[t] * kHidden + i];
        tokens[t * kHidden + i] = *state;
      }
    for (layer = 0; layer < kLayers; ++layer)
      if (runLayer(model, team, layer, count, tokens) != 0) return 1;
    for (t = 0; t < count; ++t) {
      last[t] = draw(model->letters, tokens + t * kHidden, &random[t]);
      text[t * (letters + 1) + step] = (char)(last[t] == 0 ? ' ' : 'a' + last[t] - 1);
    }
  }
  for (t = 0; t < count; ++t) text[t * (letters + 1) + letters] = '\0';
  return 0;
}

int main(int argc, char** argv) {
  static Model model;
  static char texts[2][kSequences * (kMostLetters + 1)];
  const int letters = argc > 1 ? atoi(argv[1]) : 64;
  moecclGrid_t grid = NULL;
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  Team teams[2];
  double seconds[2];
  int rank, ranks, count, mode;
  int64_t mine, all = 0;
  if (letters < 1 || letters > kMostLetters) {
    fprintf(stderr, "decode [LETTERS]: 1 to %d of them\n", kMostLetters);
    return 2;
  }
  if (moecclCommInitEnv(&comm, NULL) != moecclSuccess) return fail("moecclCommInitEnv");
  moecclCommUserRank(comm, &rank);
  moecclCommCount(comm, &ranks);
  if (moecclGridCreate(comm, (moecclGridShape_t){1, ranks, 1, moecclOrderEspEp}, &grid) !=
      moecclSuccess)
    return fail("moecclGridCreate");
  for (mode = 0; mode < 2; ++mode)
    if (makeTeam(grid, ranks, mode, &teams[mode]) != 0) return 1;
  if (moecclRouteGetInfo(teams[0].route, &info) != moecclSuccess) return fail("experts");
  model.firstExpert = info.firstExpert;
  model.localExperts = info.localExperts;
  if (makeModel(&model) != 0) return fail("a model");
  /* Every third rank has nothing to do for its own. */
  count = rank % 3 == 2 ? 0 : kSequences;
  for (mode = 0; mode < 2; ++mode) {
    double begin;
    if (moecclBarrier(comm, NULL) != moecclSuccess) return fail("moecclBarrier");
    begin = now();
    if (generate(&model, &teams[mode], rank, count, letters, texts[mode]) != 0) return 1;
    if (moecclBarrier(comm, NULL) != moecclSuccess) return fail("moecclBarrier");
    seconds[mode] = now() - begin;
  }
  if (memcmp(texts[0], texts[1], (size_t)count * (size_t)(letters + 1)) != 0) {
    fprintf(stderr, "rank %d: the two routes wrote different texts\n", rank);
    return 1;
  }
  mine = (int64_t)count * letters;
  if (moecclAllReduce(&mine, &all, 1, moecclInt64, moecclSum, comm, NULL) != moecclSuccess)
    return fail("moecclAllReduce");
  if (rank == 0) {
    printf("\"%s\"\n", texts[1]);
    printf("%d ranks, %lld letters: flat %.0f letters/s, latency mode (%s) %.0f letters/s\n", ranks,
           (long long)all, (double)all / seconds[0], teams[1].algorithm, (double)all / seconds[1]);
  }
  for (mode = 0; mode < 2; ++mode) freeTeam(&teams[mode]);
  free(model.experts);
  moecclGridDestroy(grid);
  moecclCommDestroy(comm);
  return 0;
}
